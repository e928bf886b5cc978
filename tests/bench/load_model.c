/*
 * Loads a model as the server does and says what that took, as one line of JSON: seconds from
 * opening the files to weights ready, bytes of files and of packed weights, the largest resident
 * set, and the largest resident set less what is mapped from files (the program, mostly).
 *
 *   load_model DIR [int8|int4|fp8]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "server/model/model.h"

/* A line of /proc/self/status, in bytes. */
static unsigned long long status_bytes(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");

    while (f && kib == 0 && fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoull(line + strlen(key), NULL, 10);
    if (f)
        (void)fclose(f); /* only read */
    return kib * 1024;
}

static int load(const char *dir, const char *quantization)
{
    const struct model_choice choice = {.dtype = MODEL_DTYPE_BF16, .quantization = quantization};
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    const struct ek_open_params open = {0};
    struct ek_device_stats stats = {0};
    struct ek_device *d = NULL;
    struct model *m = NULL;
    struct ek_fault fault = {.msg = ""};
    unsigned long long before = status_bytes("VmHWM:");

    uint64_t start = ek_now_us();
    int r = model_open_as(dir, &choice, &m, &fault);
    if (r == 0)
        r = b->open(&open, &d, &fault);
    if (r == 0) {
        const struct ek_plan_request q = {
            .graph = &m->graph, .ceiling = {64, 4, 64, 0}, .logit_rows = 4, .block_size = 16};
        r = b->load(d, &q, &m->files, NULL, NULL, &fault);
    }
    uint64_t took = ek_now_us() - start;
    if (r == 0) {
        b->stats(d, &stats);
        printf("{\"seconds\": %.6f, \"file_bytes\": %llu, \"weight_bytes\": %llu, \"peak_bytes\": "
               "%llu, \"before_bytes\": %llu}\n",
               (double)took / 1e6, (unsigned long long)m->weight_file_bytes,
               (unsigned long long)stats.weight_bytes, status_bytes("VmHWM:"), before);
    } else {
        (void)fprintf(stderr, "load_model: %s\n", fault.msg[0] ? fault.msg : ek_strerror(r));
    }
    b->close(d);
    model_free(m);
    return r == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        (void)fprintf(stderr, "usage: load_model DIR [int8|int4|fp8]\n");
        return 2;
    }
    return load(argv[1], argc > 2 ? argv[2] : "auto");
}
