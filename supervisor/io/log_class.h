/*
 * What the signature catalog says of a server's last output: the same file that `evenkeelctl
 * diagnose` tells from. Its classes become those of oom.h; consequences (an engine that is dead
 * because of something else) say nothing.
 */
#pragma once

#include <stddef.h>

#include "supervisor/doctor/flow.h"
#include "supervisor/law/oom.h"

#define LOOK_SITE_FILE "/etc/evenkeel/signatures.yaml"

/* The most weighty finding in the log. False: nothing is known, or memory for the catalog is
 * missing. site: a site's own entries, NULL or a file that is not there: none; a file that cannot
 * be read is as none, because a crash must be dealt with all the same. */
bool log_class_find(const char *site, enum crash_phase phase, const char *log, size_t len,
                    struct crash_found *ret_found);
/* What is known besides the verdict when a server has ended; NAN where it is not. */
struct crash_cache {
    double hit_frac, cached_frac; /* of the prefix cache: its hits, its share of the pool */
};

/* The four questions of the guides in their order, with the answers found. False for classes that
 * are not about device memory. */
bool crash_questions(const struct crash_verdict *v, enum crash_phase phase,
                     const struct crash_cache *cache,
                     struct doctor_step ret_steps[DOCTOR_QUESTIONS]);
/* The same in one sentence. */
void crash_questions_text(const struct doctor_step steps[DOCTOR_QUESTIONS], char text[200]);
