/* Options from a table: values, ranges, files, faults, allocation failures. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/options.h"
#include "tests/unit/alloc.h"

struct opts {
    char *config, *dtype, *model;
    uint64_t seqs, len;
    int64_t offset;
    double share, wait_s;
    bool caching;
    struct ek_strings names;
};
#define AT(f) offsetof(struct opts, f)

static const struct ek_opt table[] = {
    {.name = "config", .type = OPT_STRING, .at = AT(config), .group = "General", .help = "A file."},
    {.name = "model", .type = OPT_STRING, .at = AT(model), .help = "Directory."},
    {.name = "dtype",
     .type = OPT_CHOICE,
     .at = AT(dtype),
     .choices = "auto|float32|bfloat16",
     .def = "auto",
     .help = "Type."},
    {.name = "max-num-seqs",
     .type = OPT_UINT,
     .at = AT(seqs),
     .min = 1,
     .max = 4096,
     .def = "256",
     .help = "Most sequences in one step."},
    {.name = "max-model-len",
     .type = OPT_UINT,
     .at = AT(len),
     .min = 1,
     .max = 1e9,
     .auto_ok = true,
     .def = "auto",
     .help = "Longest request."},
    {.name = "offset", .type = OPT_INT, .at = AT(offset), .min = -5, .max = 5, .help = "Offset."},
    {.name = "gpu-memory-utilization",
     .type = OPT_FRACTION,
     .at = AT(share),
     .min = 0.1,
     .max = 0.99,
     .def = "0.92",
     .help = "Share."},
    {.name = "queue-deadline",
     .type = OPT_SECONDS,
     .at = AT(wait_s),
     .min = 0,
     .max = 86400,
     .help = "Deadline."},
    {.name = "enable-prefix-caching",
     .type = OPT_BOOL,
     .at = AT(caching),
     .def = "true",
     .help = "Cache."},
    {.name = "served-model-name", .type = OPT_LIST, .at = AT(names), .help = "Names."},
    {.name = "trust-remote-code",
     .type = OPT_IGNORED,
     .choices = "flag",
     .help = "no code is ever loaded from a model."},
    {.name = "cpu-offload-gb", .type = OPT_IGNORED, .help = "use --swap-space."},
    {0},
};
#define ROWS (sizeof(table) / sizeof(table[0]) - 1)

static void count_warning(void *ctx, const char *msg)
{
    assert_non_null(strstr(msg, "ignored"));
    ++*(int *)ctx;
}

static int parse(struct opts *o, const char *line, struct ek_fault *f, int *warnings)
{
    char text[512], prog[] = "prog", *argv[32] = {prog};
    int argc = 1;
    *o = (struct opts){0};
    assert_true(strlen(line) < sizeof(text));
    memcpy(text, line, strlen(line) + 1);
    for (char *s = strtok(text, " "); s; s = strtok(NULL, " "))
        argv[argc++] = s;
    struct ek_opt_source src = {
        .table = table, .into = o, .warn = count_warning, .warn_ctx = warnings};
    return ek_opt_parse(&src, argc, argv, NULL, f);
}

static void good_lines(void **state)
{
    (void)state;
    struct opts o;
    struct ek_fault f = {0};
    int warnings = 0;
    assert_int_equal(
        parse(&o,
              "--max_num_seqs=64 --max-model-len 25.6k --offset -3 --dtype float32 "
              "--gpu-memory-utilization 0.5 --queue-deadline 10m "
              "--no-enable-prefix-caching --served-model-name a " /* two words, as argparse */
              "b --trust-remote-code --cpu-offload-gb 20",
              &f, &warnings),
        0);
    assert_int_equal(o.seqs, 64);
    assert_int_equal(o.len, 25600);
    assert_int_equal(o.offset, -3);
    assert_string_equal(o.dtype, "float32");
    assert_true(o.share > 0.49 && o.share < 0.51);
    assert_true(o.wait_s > 599 && o.wait_s < 601);
    assert_false(o.caching);
    assert_int_equal(o.names.count, 2);
    assert_string_equal(o.names.at[1], "b");
    assert_int_equal(warnings, 2);
    ek_opt_free(table, &o);
    assert_int_equal(parse(&o, "--max-model-len 4K", &f, &warnings), 0);
    assert_int_equal(o.len, 4096);
    assert_int_equal(o.seqs, 256);
    ek_opt_free(table, &o);
}

static void bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *field, *says;
    } cases[] = {
        {"--max-num-seq 3", "max-num-seq", "did you mean --max-num-seqs?"},
        {"--frobnicate", "frobnicate", "unknown option"},
        {"--halp", "halp", "did you mean --help?"},
        {"--max-num-seqs 0", "max-num-seqs", "outside 1 to 4096"},
        {"--max-num-seqs 1.5", "max-num-seqs", "not a whole number"},
        {"--max-num-seqs 1e999", "max-num-seqs", "not a whole number"},
        {"--max-num-seqs nan", "max-num-seqs", "not a whole number"},
        {"--max-num-seqs 0x10", "max-num-seqs", "not a whole number"},
        {"--max-num-seqs", "max-num-seqs", "needs a value"},
        {"--max-model-len 0", "max-model-len", "or auto"},
        {"--dtype int3", "dtype", "none of auto|float32|bfloat16"},
        {"--dtype auto|float32", "dtype", "none of"},
        {"--gpu-memory-utilization 1.2", "gpu-memory-utilization", "outside 0.1 to 0.99"},
        {"--enable-prefix-caching=maybe", "enable-prefix-caching", "neither true nor false"},
        {"--no-max-num-seqs", "no-max-num-seqs", "unknown option"},
        {"--queue-deadline 5parsecs", "queue-deadline", "not a duration"},
        {"stray", "", "unexpected argument"},
        {"--config /nonexistent/x.yaml", "config", "cannot open"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct opts o;
        struct ek_fault f = {0};
        int warnings = 0;
        assert_int_equal(parse(&o, cases[i].line, &f, &warnings), -EBADMSG);
        assert_string_equal(f.field, cases[i].field);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("'%s' does not say '%s'", f.msg, cases[i].says);
        ek_opt_free(table, &o);
    }
}

static int yaml(struct opts *o, const char *text, struct ek_fault *f)
{
    *o = (struct opts){0};
    struct ek_opt_source src = {.table = table, .into = o};
    return ek_opt_yaml(&src, "x.yaml", text, strlen(text), f);
}

static void yaml_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        uint64_t line;
    } bad[] = {
        {"max-num-seqs: 8\nmax-num-seq: 9\n", "did you mean", 2},
        {"max-num-seqs: [1, [2]]\n", "plain values", 1},
        {"- a\n", "expected NAME: VALUE", 1},
        {"a: b: c\n", "not YAML", 1},
        {"\n\nmodel: {a: b}\n", "mapping", 3},
    };
    struct opts o;
    struct ek_fault f = {0};
    assert_int_equal(
        yaml(&o, "max_num_seqs: 8\nserved-model-name: [x, y]\nenable-prefix-caching: true\n", &f),
        0);
    assert_int_equal(o.seqs, 8);
    assert_int_equal(o.names.count, 2);
    ek_opt_free(table, &o);
    assert_int_equal(yaml(&o, "", &f), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        f = (struct ek_fault){0};
        assert_int_equal(yaml(&o, bad[i].text, &f), -EBADMSG);
        if (!strstr(f.msg, bad[i].says) || f.at != bad[i].line)
            fail_msg("'%s' (line %llu) for %s", f.msg, (unsigned long long)f.at, bad[i].text);
        ek_opt_free(table, &o);
    }
}

static void texts(void **state)
{
    (void)state;
    static const enum ek_opt_format formats[] = {EK_OPT_HELP, EK_OPT_ROFF, EK_OPT_YAML,
                                                 EK_OPT_MARKDOWN};
    for (size_t i = 0; i < 4; i++) {
        struct ek_buf out = {0};
        assert_int_equal(ek_opt_write(table, formats[i], &out), 0);
        assert_non_null(strstr(out.data, "Most sequences in one step."));
        if (formats[i] == EK_OPT_YAML) { /* all commented: it must read back and set nothing */
            struct opts o = {0};
            struct ek_opt_source src = {.table = table, .into = &o};
            assert_int_equal(ek_opt_yaml(&src, "x", out.data, out.len, NULL), 0);
            assert_int_equal(o.seqs, 0);
        }
        ek_buf_done(&out);
    }
}

static bool is_live(const char *name)
{
    return strcmp(name, "c") == 0;
}

/* What roff would take for its own is escaped; hyphens within words stay. */
static void man_text(void **state)
{
    (void)state;
    static const struct ek_opt rows[] = {
        {.name = "a-b", .type = OPT_CHOICE, .choices = "x|y", .def = "x", .help = ".dot"},
        {.name = "c", .type = OPT_BOOL, .help = "Use --a-b, ~/x, in-place."},
        {0}};
    struct ek_buf out = {0};
    assert_int_equal(ek_opt_write_live(rows, EK_OPT_ROFF, is_live, &out), 0);
    assert_string_equal(out.data, ".TP\n.B \\-\\-a\\-b \\fIx|y\\fR\n\\&.dot\nDefault: x.\n"
                                  ".TP\n.B \\-\\-c\nUse \\-\\-a\\-b, \\(ti/x, in-place.\n"
                                  "May change while running.\n");
    ek_buf_done(&out);
    assert_int_equal(ek_opt_format("roff"), EK_OPT_ROFF);
    assert_int_equal(ek_opt_format("yaml"), EK_OPT_YAML);
    assert_int_equal(ek_opt_format(NULL), EK_OPT_MARKDOWN);
}

/* What is ignored has one paragraph, so that --help ends with what counts. */
static void help_text(void **state)
{
    (void)state;
    static const struct ek_opt rows[] = {
        {.name = "a", .type = OPT_UINT, .def = "1", .group = "One", .help = "A number."},
        {.name = "x-y", .type = OPT_IGNORED, .group = "Ignored", .help = "never shown."},
        {.name = "z", .type = OPT_IGNORED, .help = "never shown."},
        {0}};
    struct ek_buf out = {0};
    assert_int_equal(ek_opt_write(rows, EK_OPT_HELP, &out), 0);
    assert_string_equal(out.data, "\nOne:\n  --a N  [1]\n      A number.\n"
                                  "\nIgnored (the man page says why):\n  --x-y --z\n");
    ek_buf_done(&out);
}

/* vLLM's parser takes '_' for '-' inside of a flag, and so does ours. */
static void flags_in_both_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *word, *flag;
        bool is;
        const char *value;
    } cases[] = {
        {"--max-num-seqs", "--max-num-seqs", true, NULL},
        {"--max_num_seqs", "--max-num-seqs", true, NULL},
        {"--max_num-seqs=8", "--max-num-seqs", true, "8"},
        {"--max-num-seqs=", "--max-num-seqs", true, ""},
        {"--kv_transfer_config={\"a_b\":1}", "--kv-transfer-config", true, "{\"a_b\":1}"},
        {"--max-num-seqs2", "--max-num-seqs", false, NULL},
        {"--max-num", "--max-num-seqs", false, NULL},
        {"__max-num-seqs", "--max-num-seqs", false, NULL},
        {"-_max-num-seqs", "--max-num-seqs", false, NULL},
        {"_m", "-m", false, NULL},
        {"-m", "-m", true, NULL},
        {"", "-m", false, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *value = NULL;
        assert_int_equal(ek_opt_is(cases[i].word, cases[i].flag, &value), cases[i].is);
        assert_int_equal(ek_opt_is(cases[i].word, cases[i].flag, NULL), cases[i].is);
        if (cases[i].value)
            assert_string_equal(value, cases[i].value);
        else
            assert_null(value);
    }
}

static void allocation_failures(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct opts o;
        struct ek_fault f = {0};
        int warnings = 0;
        alloc_fail_at(n);
        int r = parse(&o, "--dtype float32 --served-model-name a --model m", &f, &warnings);
        bool failed = alloc_failed();
        ek_opt_free(table, &o);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_lines),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(yaml_files),
        cmocka_unit_test(texts),
        cmocka_unit_test(man_text),
        cmocka_unit_test(help_text),
        cmocka_unit_test(flags_in_both_spellings),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
