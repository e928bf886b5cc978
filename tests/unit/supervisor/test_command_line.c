/* What the allocator's variables are for the next start: the operator's words stay, in each of the
 * names that PyTorch has had, and a choice that is made is not made again. */
#include "supervisor/servers/command_line.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/config/options.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/law/remedy.h"
#include "supervisor/law/trial.h"
#include "tests/unit/alloc.h"

#define CUDA "PYTORCH_CUDA_ALLOC_CONF"
#define NEW  "PYTORCH_ALLOC_CONF"
#define HIP  "PYTORCH_HIP_ALLOC_CONF"
#define SEG  "expandable_segments:"
#define ON   SEG "True"

struct command_row {
    const char *what, *env, *args; /* of the configuration, by '|' */
    const char *inherited;         /* PYTORCH_ALLOC_CONF of evenkeeld's own */
    bool settled, unit;
    const char *want; /* the whole environment of the next start, by '|' */
};

static const struct command_row rows[] = {
    {"nothing is said", "", "", NULL, false, false, CUDA "=" ON},
    {"something else is said", "A=b|" CUDA "=a:512|C=d", "", NULL, false, false,
     "A=b|C=d|" CUDA "=a:512," ON},
    {"by the new name alone", NEW "=a:512", "", NULL, false, false, NEW "=a:512," ON},
    {"by both", NEW "=a:1|" CUDA "=b:2", "", NULL, false, false,
     CUDA "=b:2," ON "|" NEW "=a:1," ON},
    {"for AMD", HIP "=a:1", "", NULL, false, false, HIP "=a:1," ON},
    {"empty", CUDA "=", "", NULL, false, false, CUDA "=" ON},
    {"inherited", "A=b", "", "a:1", false, false, "A=b|" NEW "=a:1," ON},
    {"its own, not the inherited", NEW "=b:2", "", "a:1", false, false, NEW "=b:2," ON},
    {"a unit inherits nothing", "A=b", "", "a:1", false, true, "A=b|" CUDA "=" ON},
    {"off", CUDA "=" SEG "False", "", NULL, true, false, CUDA "=" SEG "False"},
    {"on", NEW "=" ON ",a:1", "", NULL, true, false, NEW "=" ON ",a:1"},
    {"inherited and off", "A=b", "", SEG "False", true, false, "A=b"},
    {"a connector", "A=b", "--kv-transfer-config|{}", NULL, true, false, "A=b"},
    {"in one word", "", "--kv-transfer-config={}", NULL, true, false, ""},
    {"sleep", "", "--enable-sleep-mode", NULL, true, false, ""},
};

/* Into the caller's places; the list points into *text. */
static struct ek_strings split(const char *from, char text[200], char *at[4])
{
    struct ek_strings list = {.at = at};
    char *rest = NULL;
    (void)snprintf(text, 200, "%s", from);
    for (char *word = strtok_r(text, "|", &rest); word && list.count < 4;
         word = strtok_r(NULL, "|", &rest))
        at[list.count++] = word;
    return list;
}

static struct server_config config_of(const struct command_row *row)
{
    static char vllm[] = "vllm", unit[] = "a.service", texts[2][200], *at[2][4];
    static char *argv[] = {vllm, NULL};
    return (struct server_config){
        .dialect = dialect_find("vllm"),
        .argv = argv,
        .unit = row->unit ? unit : NULL,
        .env = split(row->env, texts[0], at[0]),
        .args = split(row->args, texts[1], at[1]),
    };
}

static void inherit(const char *value)
{
    (void)unsetenv(CUDA);
    (void)unsetenv(HIP);
    if (value)
        assert_int_equal(setenv(NEW, value, 1), 0);
    else
        assert_int_equal(unsetenv(NEW), 0);
}

static void keeps_what_is_said(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct server_config c = config_of(&rows[i]);
        struct remedy_settings caps = {.expandable = true};
        struct command_line w;
        char got[400] = "";
        inherit(rows[i].inherited);
        assert_int_equal(command_line_make(&c, &(struct trial){0}, &caps, &w), 0);
        for (char **at = w.env; *at; at++) {
            size_t len = strlen(got);
            (void)snprintf(got + len, sizeof(got) - len, "%s%s", len ? "|" : "", *at);
        }
        command_line_done(&w);
        if (strcmp(got, rows[i].want) != 0 || command_line_segments_settled(&c) != rows[i].settled)
            fail_msg("%s: '%s', not '%s'", rows[i].what, got, rows[i].want);
    }
    inherit(NULL);
}

static void leaves_them_without_a_cap(void **state)
{
    (void)state;
    struct server_config c = config_of(&rows[1]);
    struct remedy_settings caps = {0};
    struct command_line w;
    inherit(NULL);
    assert_int_equal(command_line_make(&c, &(struct trial){0}, &caps, &w), 0);
    assert_string_equal(w.env[1], CUDA "=a:512");
    assert_string_equal(w.env[2], "C=d");
    assert_null(w.env[3]);
    command_line_done(&w);
}

/* What the server's own file says: a cap does not raise it. */
static void lowers_what_a_file_says(void **state)
{
    (void)state;
    static const struct {
        const char *text, *flag; /* of the file; beside it on the command line */
        uint32_t seqs, tokens, running;
        const char *want; /* the last two words of the next start */
    } cases[] = {
        {"max-num-seqs: 8\n", NULL, 16, 0, 8, "--config|FILE"},
        {"# small\nport: 9000\nmax_num_seqs: '64'\n", NULL, 16, 0, 16, "--max-num-seqs|16"},
        {"max-num-seqs: 8\n", "--max_num_seqs=64", 16, 0, 16, "--max-num-seqs|16"},
        {"max-num-batched-tokens: 1k\nlora: {a: 1}\n", NULL, 0, 1024, 0,
         "--config|FILE"}, /* k is a thousand */
        {"max-num-batched-tokens: 1K\n", NULL, 0, 1000, 0, "--max-num-batched-tokens|1000"},
        {"- a list\n", NULL, 16, 0, 16, "--max-num-seqs|16"},
        {"max-num-seqs: [1\n", NULL, 16, 0, 16, "--max-num-seqs|16"},
        {"", NULL, 16, 0, 16, "--max-num-seqs|16"},
        {NULL, NULL, 16, 0, 16, "--max-num-seqs|16"}, /* a FIFO: not waited for */
    };
    char dir[] = "/tmp/evenkeel-words-XXXXXX", real[64], path[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(real, sizeof(real), "%s/real", dir);
    (void)snprintf(path, sizeof(path), "%s/server.yaml", dir); /* as a ConfigMap is mounted */
    assert_int_equal(symlink("real", path), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char program[] = "vllm", verb[] = "serve", config[] = "--config", flag[40] = "--seed=1";
        char *argv[] = {program, verb, flag, config, path, NULL};
        if (cases[i].flag)
            (void)snprintf(flag, sizeof(flag), "%s", cases[i].flag);
        struct server_config c = {.dialect = dialect_find("vllm"), .argv = argv};
        struct remedy_settings caps = {.seqs = cases[i].seqs, .tokens = cases[i].tokens};
        struct command_line w;
        char got[200];
        (void)unlink(real);
        if (cases[i].text) {
            FILE *f = fopen(real, "we");
            assert_non_null(f);
            assert_true(fputs(cases[i].text, f) >= 0 && fclose(f) == 0);
        } else {
            assert_int_equal(mkfifo(real, 0600), 0);
        }
        assert_int_equal(command_line_make(&c, &(struct trial){0}, &caps, &w), 0);
        size_t count = 0;
        while (w.argv[count])
            count++;
        bool own = strcmp(w.argv[count - 1], path) == 0;
        (void)snprintf(got, sizeof(got), "%s|%s", w.argv[count - 2],
                       own ? "FILE" : w.argv[count - 1]);
        assert_string_equal(got, cases[i].want);
        assert_int_equal(w.running.seqs, cases[i].running);
        command_line_done(&w);
    }
    (void)unlink(real);
    (void)unlink(path);
    (void)rmdir(dir);
}

static void without_memory(void **state)
{
    (void)state;
    struct server_config c = config_of(&rows[1]);
    struct remedy_settings caps = {.expandable = true};
    inherit(NULL);
    for (long n = 1;; n++) {
        struct command_line w;
        alloc_fail_at(n);
        int r = command_line_make(&c, &(struct trial){0}, &caps, &w);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            command_line_done(&w);
            break;
        }
        if (r == 0) { /* of the C library's own: asprintf() */
            command_line_done(&w);
            continue;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(w.env);
    }
    alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_is_said), cmocka_unit_test(leaves_them_without_a_cap),
        cmocka_unit_test(lowers_what_a_file_says), cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
