/* Recordings: head lines, polls and pages from a file that anybody may have written. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/servers/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = NULL;
    size_t len = 0;
    if (size == 0)
        return 0;
    FILE *in = fmemopen((void *)(uintptr_t)data, size, "r"), *out = open_memstream(&text, &len);
    struct replay_setup setup = {.dialect = dialect_at(0)};
    struct ek_fault fault = {0};
    policy_defaults(&setup.params);
    if (in && out)
        (void)replay_run(&setup, in, out, &fault); /* any result, but no crash and no leak */
    if (in)
        (void)fclose(in);
    if (out)
        (void)fclose(out);
    free(text);
    return 0;
}
