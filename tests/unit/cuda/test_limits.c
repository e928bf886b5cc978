/*
 * The dynamic shared memory that launches ask for is what tests/cuda/shared.txt says, kernel by
 * kernel: against that file tools/kernels.py holds what the assembler made of them. With WRITE set
 * the file is written anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "tests/unit/cuda/fake_card.h"

#define LIST "tests/cuda/shared.txt"

enum { MOST = 256 };

struct row {
    char name[64];
    unsigned bytes;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static unsigned add(struct row *rows, unsigned count, const char *name, unsigned bytes)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) {
            assert_int_equal(rows[i].bytes, bytes);
            return count;
        }
    assert_true(count < MOST);
    (void)snprintf(rows[count].name, sizeof(rows[count].name), "%s", name);
    rows[count].bytes = bytes;
    return count + 1;
}

/* Of all types to compute with, head sizes and caches; those that are there. */
static unsigned launched(struct row *rows)
{
    static const enum ek_dtype types[] = {EK_F32, EK_F16, EK_BF16};
    int (*find)(const char *name, size_t *ret_bytes);
    void *at = fake_symbol(g_fake.library, "shim_find");
    unsigned count = 0;
    char name[64];
    size_t args;

    memcpy(&find, &at, sizeof(at));
    for (int t = 0; t < 3; t++)
        for (uint32_t head = 64; head <= 256; head *= 2)
            for (int cache = 0; cache < 3; cache++) {
                const struct ek_graph g = {
                    .dtype = types[t], .kv_f8 = cache == 1, .kv_i8 = cache == 2};
                struct ek_device *d = calloc(1, sizeof(*d));
                d->graph = &g;
                d->shape.head_most = head;
                for (int k = 0; k < CUDA_KERNELS; k++) {
                    uint32_t bytes = cuda_kernel_of(d, (enum cuda_kernel)k, name, sizeof(name));
                    if (bytes > 0 && find(name, &args) >= 0)
                        count = add(rows, count, name, bytes);
                }
                free(d);
            }
    qsort(rows, count, sizeof(*rows), by_name);
    return count;
}

static void write_list(const struct row *rows, unsigned count)
{
    FILE *f = fopen(LIST, "w");

    assert_non_null(f);
    (void)fprintf(f,
                  "# Dynamic shared memory of launches, bytes; written by test_limits with WRITE "
                  "set.\n");
    for (unsigned i = 0; i < count; i++)
        (void)fprintf(f, "%s %u\n", rows[i].name, rows[i].bytes);
    assert_int_equal(fclose(f), 0);
}

static void test_shared(void **state)
{
    (void)state;
    static struct row rows[MOST];
    const unsigned count = launched(rows);
    unsigned seen = 0;
    char line[128], want[128];

    assert_true(count > 0);
    if (getenv("WRITE"))
        write_list(rows, count);
    FILE *f = fopen(LIST, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#')
            continue;
        if (seen == count)
            fail_msg("%s has %s too much; WRITE=1 writes it anew", LIST, line);
        (void)snprintf(want, sizeof(want), "%.63s %u\n", rows[seen].name, rows[seen].bytes);
        if (strcmp(line, want) != 0)
            fail_msg("%s has %s instead of %s; WRITE=1 writes it anew", LIST, line, want);
        seen++;
    }
    (void)fclose(f);
    if (seen < count)
        fail_msg("%s lacks %s; WRITE=1 writes it anew", LIST, rows[seen].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared)};

    if (getenv("EVENKEEL_GPU"))
        return 0; /* says nothing of the card */
    return cmocka_run_group_tests_name("limits", tests, fake_setup, NULL);
}
