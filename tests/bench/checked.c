/* The null backend as the checker of a simulation, see checked.h. */
#include "tests/bench/checked.h"

#include "tests/sim/null_backend.h"
#include "tests/unit/alloc.h"

static int open_null(const struct schedsim_size *z, struct ek_device **ret_device)
{
    const struct null_params p = {*z->ceiling,   z->blocks, z->host_blocks,
                                  z->block_size, z->vocab,  0};

    return null_open(&p, ret_device);
}

static const char *violation_of(const struct ek_device *d)
{
    return d->violation;
}

int schedsim_checked(const struct trace *t, const struct schedsim_params *p,
                     struct schedsim_result *ret_result)
{
    static const struct schedsim_checker checker = {.backend = &null_backend,
                                                    .open = open_null,
                                                    .close = null_close,
                                                    .violation = violation_of,
                                                    .allocations = alloc_count};
    struct schedsim_params checked = *p;

    checked.checker = &checker;
    return schedsim_run(t, &checked, ret_result);
}
