/* `evenkeelctl diagnose --live`: asks running servers twice and says what the rules find. */
#pragma once

#include <stdbool.h>

#include "supervisor/ctl/diagnose.h"

struct ek_strings;

struct live_request {
    const struct ek_strings *urls;
    double seconds;   /* between the two readings; 0 = one reading */
    bool json, watch; /* watch: tells what changes until it is ended */
    struct diagnose_style style;
};

int live_run(const struct live_request *r); /* an exit code */
