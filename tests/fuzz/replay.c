/*
 * Runs a fuzz target over the files named on the command line, once each, without a fuzzer: the
 * corpus becomes a regression test. Each input lies in memory of exactly its size.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        uint8_t *data = malloc(1u << 20);
        if (!f || !data) {
            (void)fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }
        size_t n = fread(data, 1, 1u << 20, f);
        (void)fclose(f); /* only read */
        uint8_t *exact = realloc(data, n ? n : 1);
        (void)LLVMFuzzerTestOneInput(exact ? exact : data, n); /* always 0 */
        free(exact ? exact : data);
    }
    return 0;
}
