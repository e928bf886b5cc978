/* The file of forms: what was written comes back, and nothing else is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "kernels/backend.h"
#include "server/forms_file.h"

static const struct forms_about about = {"Some CPU (R) @ 2.3 GHz", "avx512vnni"};
static const struct ek_forms some = {
    .count = 3,
    .form = {{EK_BF16, EK_BF16, 4864, 896, 0, "avx512vnni-wide", 1.25},
             {EK_I8, EK_BF16, 151936, 896, 32, "avx512", 1.5},
             {EK_F4_E2M1, EK_F16, 1, 1, 1, "avx2", 1}}};

static void written(const struct forms_about *by, const struct ek_forms *forms, struct ek_buf *out)
{
    assert_int_equal(forms_file_write(by, forms, out), 0);
    assert_true(out->len < FORMS_FILE_MOST);
}

static void test_round(void **state)
{
    struct ek_buf text = {0};
    struct ek_forms got = {0}, full = {.count = EK_MOST_FORMS};
    (void)state;

    written(&about, &some, &text);
    assert_null(forms_file_read(text.data, text.len, &about, &got));
    assert_memory_equal(&got, &some, sizeof(got));
    ek_buf_done(&text);
    for (uint32_t i = 0; i < full.count; i++)
        full.form[i] = (struct ek_form){EK_F8_E4M3, EK_BF16,   999999999,
                                        999999999,  999999999, "abcdefghijklmnopqrstuvw",
                                        123.456};
    written(&about, &full, &text);
    assert_null(forms_file_read(text.data, text.len, &about, &got));
    assert_memory_equal(&got, &full, sizeof(got));
    ek_buf_done(&text);
}

/* Cut anywhere, or with any bit of it turned, it is not taken. */
static void test_damage(void **state)
{
    struct ek_buf text = {0};
    struct ek_forms got = {.count = 77};
    (void)state;

    written(&about, &some, &text);
    for (size_t len = 0; len < text.len; len++)
        assert_non_null(forms_file_read(text.data, len, &about, &got));
    for (size_t i = 0; i < text.len; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            text.data[i] = (char)(text.data[i] ^ 1 << bit);
            assert_non_null(forms_file_read(text.data, text.len, &about, &got));
            text.data[i] = (char)(text.data[i] ^ 1 << bit);
        }
    assert_int_equal(got.count, 77);
    assert_null(forms_file_read(text.data, text.len, &about, &got));
    ek_buf_done(&text);
}

static void test_others(void **state)
{
    const struct forms_about cpu = {"Another CPU", about.tier}, tier = {about.cpu, "avx2"};
    struct ek_forms bad = some, got;
    struct ek_buf text = {0};
    (void)state;

    written(&about, &some, &text);
    assert_string_equal(forms_file_read(text.data, text.len, &cpu, &got), "of another CPU");
    assert_string_equal(forms_file_read(text.data, text.len, &tier, &got),
                        "of another instruction tier");
    char *version = strstr(text.data, "forms 2\n");
    assert_non_null(version);
    version[6] = '1';
    assert_string_equal(forms_file_read(text.data, text.len, &about, &got), "of another version");
    ek_buf_done(&text);
    /* Whole, with a sum that is right, and yet no form. */
    (void)strcpy(bad.form[1].name, "a b");
    written(&about, &bad, &text);
    assert_string_equal(forms_file_read(text.data, text.len, &about, &got), "damaged");
    ek_buf_done(&text);
}

/* Of several names that change together, too: sums that are only added up would cancel each other
 * where the names are of one length. */
static void test_sum(void **state)
{
    struct ek_forms a = some, b = some;
    (void)state;

    assert_int_equal(forms_file_sum(&a), 0); /* none is used */
    a.used = b.used = 3;
    (void)strcpy(b.form[2].name, "avx512");
    assert_int_not_equal(forms_file_sum(&a), forms_file_sum(&b));
    for (uint32_t i = 0; i < 2; i++) {
        a.form[i] = b.form[i] = some.form[0];
        a.form[i].cols = b.form[i].cols = 896 + i;
        (void)strcpy(a.form[i].name, "avx512bf16");
        (void)strcpy(b.form[i].name, "avx512vnni");
    }
    a.used = b.used = 2;
    assert_int_not_equal(forms_file_sum(&a), forms_file_sum(&b));
    b = a;
    assert_int_equal(forms_file_sum(&a), forms_file_sum(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
