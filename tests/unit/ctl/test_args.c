/* evenkeelctl's command line: what is understood, and a sentence for what is not. */
#include "supervisor/ctl/args.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"

static int parse(const char *line, struct ctl_args *a, struct ek_fault *fault)
{
    static char text[512];
    char *argv[32] = {(char *)(uintptr_t) "evenkeelctl"}, *save = NULL;
    int argc = 1;
    (void)strncpy(text, line, sizeof(text) - 1);
    for (char *w = strtok_r(text, " ", &save); w && argc < 32; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    *fault = (struct ek_fault){0};
    return args_parse(argc, argv, a, fault);
}

static void test_good(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        struct ctl_args want;
    } cases[] = {
        {"status", {.command = CMD_STATUS, .count = 20}},
        {"--json status", {.command = CMD_STATUS, .count = 20, .json = true}},
        {"status -j", {.command = CMD_STATUS, .count = 20, .json = true}},
        {"explain --limit 5", {.command = CMD_EXPLAIN, .count = 5}},
        {"explain --limit=7", {.command = CMD_EXPLAIN, .count = 7}},
        {"explain --since @5",
         {.command = CMD_EXPLAIN, .count = 4096, .since = "@5", .since_s = 5}},
        {"explain --since=0 -n 3", {.command = CMD_EXPLAIN, .count = 3, .since = "0"}},
        {"limits get", {.command = CMD_LIMITS_GET, .count = 20}},
        {"limits", {.command = CMD_LIMITS_GET, .count = 20}},
        {"drain --help", {.command = CMD_HELP, .count = 20, .topic = "drain"}},
        {"help drain", {.command = CMD_HELP, .count = 20, .topic = "drain"}},
        {"help top", {.command = CMD_HELP, .count = 20, .topic = "top"}},
        {"help", {.command = CMD_HELP, .count = 20}},
        {"limits set max_num_running_seqs=5",
         {.command = CMD_LIMITS_SET, .count = 20, .knob = {{true, 5}}}},
        {"limits set max-num-seqs=5 max_num_batched_tokens=512 --pin",
         {.command = CMD_LIMITS_SET, .count = 20, .pin = true, .knob = {{true, 5}, {true, 512}}}},
        {"limits pin max_num_running_seqs",
         {.command = CMD_LIMITS_PIN, .count = 20, .knob = {{true, 0}}}},
        {"limits unpin max_num_batched_tokens",
         {.command = CMD_LIMITS_UNPIN, .count = 20, .knob = {{false, 0}, {true, 0}}}},
        {"drain", {.command = CMD_DRAIN, .count = 20}},
        {"drain --wait", {.command = CMD_DRAIN, .count = 20, .wait = true, .timeout_s = 600}},
        {"-w restart", {.command = CMD_RESTART, .count = 20, .wait = true, .timeout_s = 600}},
        {"roll --timeout 9",
         {.command = CMD_ROLL, .count = 20, .wait = true, .timeout_s = 9}}, /* its former name */
        {"rolling-restart", {.command = CMD_ROLL, .count = 20}},
        {"engine release -w",
         {.command = CMD_ENGINE_RELEASE, .count = 20, .wait = true, .timeout_s = 600}},
        {"nonsense --help", {.command = CMD_HELP, .count = 20, .topic = "nonsense"}},
        {"--version", {.command = CMD_VERSION, .count = 20}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ctl_args a, want = cases[i].want;
        struct ek_fault fault;
        assert_int_equal(parse(cases[i].line, &a, &fault), 0);
        assert_int_equal(a.command, want.command);
        assert_int_equal(a.count, want.count);
        assert_int_equal(a.since_s, want.since_s);
        assert_int_equal(a.json, want.json);
        assert_int_equal(a.pin, want.pin);
        assert_int_equal(a.wait, want.wait);
        if (a.wait)
            assert_int_equal(a.timeout_s, want.timeout_s);
        assert_string_equal(a.topic ? a.topic : "", want.topic ? want.topic : "");
        for (int k = 0; k < CTL_KNOBS; k++) {
            assert_int_equal(a.knob[k].named, want.knob[k].named);
            assert_int_equal(a.knob[k].value, want.knob[k].value);
        }
    }
    struct ctl_args a;
    struct ek_fault fault;
    assert_int_equal(parse("-s one --socket /x --reason busy status", &a, &fault), 0);
    assert_string_equal(a.server, "one");
    assert_string_equal(a.socket, "/x");
    assert_string_equal(a.reason, "busy");
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "A command is needed"},
        {"nonsense", "no command 'nonsense'; see"},
        {"statsu", "no command 'statsu'; did you mean status?"},
        {"help drian", "no command 'drian'; did you mean drain?"},
        {"help tpo", "no command 'tpo'; did you mean top?"},
        {"dianose", "did you mean diagnose?"},
        {"status --jsom", "no option '--jsom'; did you mean --json?"},
        {"help status now", "'status' is too much"},
        {"status now", "'now' is too much"},
        {"limits put", "get, set, pin or unpin"},
        {"explain --since soon", "--since takes"},
        {"limits set", "Which limit"},
        {"limits set max_num_running_seqs", "To which value"},
        {"limits set max_num_running_seqs=0", "from 1"},
        {"limits set max_num_running_seqs=-1", "from 1"},
        {"limits set max_num_running_seqs=1x", "from 1"},
        {"limits set max_num_running_seqs=99999999999999999999", "from 1"},
        {"limits set seqs=1", "no limit 'seqs'"},
        {"--colour status", "no option '--colour'"},
        {"--json=1 status", "takes no value"},
        {"status --socket", "needs a value"},
        {"explain --limit none", "--limit must be"},
        {"drain --timeout 0", "--timeout must be a number of seconds from 1"},
        {"explain --limit 4097", "from 1 to 4096"},
        {"a b c d e f g h i", "too many"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ctl_args a;
        struct ek_fault fault;
        assert_int_equal(parse(cases[i].line, &a, &fault), -EBADMSG);
        assert_non_null(strstr(fault.msg, cases[i].says));
    }
}

/* All of it, or of one command alone; every line fits a terminal of 80 columns. */
static void test_help(void **state)
{
    (void)state;
    static const struct {
        const char *topic, *has, *lacks;
    } cases[] = {
        {NULL, "limits set", "Usage: evenkeelctl top"},
        {"nonsense", "limits set", "Usage: evenkeelctl top"},
        {"limits", "limits unpin", "drain "},
        {"drain", "What runs and waits finishes", "--limit"},
        {"drain", "--timeout", "--pin"},
        {"explain", "--limit", "--wait"},
        {"status", "--json", "--reason"},
        {"rolling-restart", "in its turn", "--reason"},
        {"engine", "plug-in that is on disk", "--reason"},
        {"top", "--price", "limits set"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        args_help(cases[i].topic, &out);
        assert_non_null(strstr(out.data, cases[i].has));
        assert_null(strstr(out.data, cases[i].lacks));
        for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1)
            assert_true(strcspn(line, "\n") <= 80);
        ek_buf_done(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
