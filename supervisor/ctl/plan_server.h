/*
 * What evenkeel-server itself plans on this machine: asks the program with --dry-run, so that the
 * bytes are those that a start would take.
 */
#pragma once

#include <jansson.h>

#include "supervisor/planner/fit.h"

struct plan_server_request {
    const char *model;
    double share;
    uint32_t max_len, seqs, tokens; /* 0 = its own default */
};

/* Its answer (the caller's), and the same as a fit of one device. -ENOENT: there is no such program
 * beside this one or in $PATH; -EBADMSG: it refused, `said` holds its sentence. */
int plan_server_ask(const struct plan_server_request *q, json_t **ret_answer,
                    struct plan_fit *ret_fit, char said[400]);
