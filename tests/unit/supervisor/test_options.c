/* Flags and the YAML file: what is taken, what is refused and how it says so. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/file.h"
#include "supervisor/config/options_table.h"
#include "tests/unit/alloc.h"

static const char good[] = "listen: 127.0.0.1:0\n"
                           "servers:\n"
                           "  a:\n"
                           "    command: [prog, --x, \"1\"]\n"
                           "    port: 8001\n"
                           "    poll_s: 0.5\n"
                           "    env: {A: b, C: \"\"}\n"
                           "    limits:\n"
                           "      max_num_running_seqs: {min: 2, max: 40}\n"
                           "    policy: {usage_high: 0.8, settle-s: 4}\n"
                           "    usage_release: 0.7\n"
                           "    raise_step: 2\n"
                           "  b-2:\n"
                           "    engine: vllm\n"
                           "    command: [vllm, serve]\n"
                           "    port: 8002\n"
                           "    mode: observe\n";

static void test_reads_servers(void **state)
{
    (void)state;
    struct config c = {0};
    struct ek_fault f = {0};
    assert_int_equal(config_yaml(&c, NULL, "f.yaml", good, strlen(good), &f), 0);
    assert_int_equal(c.count, 2);
    const struct server_config *a = config_find(&c, "a");
    assert_non_null(a);
    assert_int_equal(a->command.count, 3);
    assert_string_equal(a->command.at[2], "1");
    assert_int_equal(a->port, 8001);
    assert_int_equal(a->env.count, 2);
    assert_string_equal(a->env.at[0], "A=b");
    assert_null(a->env.at[2]);
    assert_int_equal(a->seqs_min, 2);
    assert_int_equal(a->seqs_max, 40);
    assert_true(a->policy.usage_high > 0.79 && a->policy.usage_high < 0.81);
    assert_true(a->policy.settle_s > 3.9 && a->policy.settle_s < 4.1);
    assert_int_equal(a->raise_step, 2);
    assert_string_equal(config_find(&c, "b-2")->engine, "vllm");
    assert_null(config_find(&c, "c"));
    config_free(&c);
}

/* One command for a vLLM: how it is started by its command and by a Python, and what is refused. */
static void test_foreign_engine(void **state)
{
    static const struct {
        const char *words[12], *line, *says;
    } cases[] = {
        {{"--engine", "vllm", "--model", "/m", "--port", "8001", "--", "--max-num-seqs", "4"},
         "vllm serve /m --host 127.0.0.1 --port 8001 --shutdown-timeout 300 --max-num-seqs 4",
         NULL},
        {{"--engine=vllm", "--model=/m", "--program=/v/bin/python3", "--", "--shutdown-timeout=9"},
         "/v/bin/python3 -m vllm.entrypoints.openai.api_server --model /m --host 127.0.0.1 --port "
         "8000 --shutdown-timeout=9",
         NULL},
        {{"--engine=vllm", "--model=/m", "--port=0"}, NULL, "needs a `port`"},
        {{"--engine=vllm", "--model=/m", "--api-key-file=/no/such"}, NULL, "/no/such"},
        {{"--engine=llama", "--model=/m"}, NULL, "engine"},
        {{"--engine=vllm", "--model=/m", "--devices=0,0"}, NULL, "each once"},
        {{"--engine=vllm", "--devices=0"}, NULL, "--model DIR"},
        {{"--engine=vllm", "--model=/m", "--env=NCCL_DEBUG"}, NULL, "NAME=VALUE"},
        {{"--engine=vllm", "--model=/m", "--env", "=1"}, NULL, "NAME=VALUE"},
        {{"--engine=vllm", "--model=/m", "--max-model-len", "9"}, NULL, "follow after --"},
        {{"--engine=vllm", "--model=/m", "--", "--max-model-len 9"},
         NULL,
         "[--max-model-len, \"9\"], or --max-model-len=9"},
        {{"--engine=vllm", "--model=/m", "--", "--max-model-len=a b", "-c d", "-- x"},
         "vllm serve /m --host 127.0.0.1 --port 8000 --shutdown-timeout 300 --max-model-len=a b -c "
         "d -- x",
         NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        char copy[12][64], *argv[13] = {NULL}, line[512] = "";
        char program[] = "evenkeeld";
        int argc = 0;
        argv[argc++] = program;
        for (int k = 0; k < 12 && cases[i].words[k]; k++) {
            (void)snprintf(copy[k], sizeof(copy[k]), "%s", cases[i].words[k]);
            argv[argc++] = copy[k];
        }
        int r = config_parse(argc, argv, &c, &f);
        if (!cases[i].line) {
            assert_int_equal(r, -EBADMSG);
            assert_non_null(strstr(f.msg, cases[i].says));
            continue;
        }
        assert_int_equal(r, 0);
        for (char **a = c.servers[0].argv; *a; a++)
            (void)snprintf(line + strlen(line), sizeof(line) - strlen(line), "%s%s",
                           *line ? " " : "", *a);
        assert_string_equal(line, cases[i].line);
        config_free(&c);
    }
}

/* A server's own file: host and port are read, what the server knows is left to it. */
static void test_server_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says; /* NULL = good */
        uint64_t port;
    } cases[] = {
        {"model: /m\nport: 8123\nmax-num-seqs: 16\n", NULL, 8123},
        {"model: /m\n", NULL, 8000},
        {"model: /m\nport: ~\nserved_model_name: [a, b]\n", NULL, 8000},
        {"port: 8123\n", "names no `model`", 0},
        {"model:\nport: 8123\n", "names no `model`", 0},
        {"model: /m\nport: 65536\n", "port", 0},
        {"model: /m\nuds: /run/x\n", "host and port", 0},
        {"model: /m\nmodel: /n\n", "given twice", 0},
        {"- model\n", "must be a map", 0},
        {"model: [\n", "line 2", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        struct server_config *s = NULL;
        assert_int_equal(config_add_server(&c, "a", &s, &f), 0);
        int r = config_server_yaml(s, "a.yaml", cases[i].text, strlen(cases[i].text), &f);
        assert_int_equal(r, cases[i].says ? -EBADMSG : 0);
        if (cases[i].says)
            assert_non_null(strstr(f.msg, cases[i].says));
        else
            assert_int_equal(s->port, cases[i].port);
        config_free(&c);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        uint64_t line;
    } cases[] = {
        {"servers:\n  a:\n    engine: evenkeel\n    prot: 80\n", "did you mean 'port'", 4},
        {"servers:\n  a:\n    port: 70000\n", ": port: 70000 is outside", 3},
        {"servers:\n  a:\n    poll_s: 0\n", ": poll_s: 0 is outside", 3},
        {"servrs:\n  a: {}\n", "did you mean 'servers'?", 1},
        {"servers:\n\ta: {}\n", "indent with blanks", 2},
        {"servers:\n  a:\n    port: x\n", "port", 3},
        {"servers:\n  A:\n    port: 1\n", "server name", 3},
        {"servers:\n  a:\n    model: x\n  a:\n    model: y\n", "given twice", 4},
        {"servers:\n  a:\n    mode: act\n    mode: act\n", "given twice", 4},
        {"servers:\n  a:\n    command: prog\n", "must be a list", 3},
        {"servers:\n  a:\n    command: [[x]]\n", "must be text", 3},
        {"servers:\n  a:\n    limits: {max_num_seqs: {min: 1}}\n", "max_num_running_seqs", 3},
        {"servers:\n  a:\n    limits: {max_num_running_seqs: {least: 1}}\n", "min and max", 3},
        {"servers:\n  a:\n    limits: {max_num_running_seqs: {min: 0}}\n", "whole number", 3},
        {"servers:\n  a:\n    limits: 5\n", "must be a map", 3},
        {"servers:\n  a:\n    env: {A: [1]}\n", "NAME: value", 3},
        {"servers:\n  a:\n    mode: watch\n", "mode", 3},
        {"servers:\n  a:\n    usage_high: 1.5\n", "usage", 3},
        {"listn: x\nservers: {a: {}}\n", "did you mean 'listen'", 1},
        {"servers:\n  a: &a {port: 1}\n  b:\n    <<: *a\n", "write the keys out", 4},
        {"servers: [a]\n", "must be a map", 1},
        {"servers:\n  a: {\n", "line", 0},
        {"", "empty", 0},
        {"listen: off\n", "no server", 0},
        {"servers:\n  ? [1]\n  : x\n", "plain text", 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        int r = config_yaml(&c, NULL, "f.yaml", cases[i].text, strlen(cases[i].text), &f);
        assert_int_equal(r, -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu says: %s", i, f.msg);
        if (cases[i].line)
            assert_int_equal(f.at, cases[i].line);
        config_free(&c);
    }
}

static int parse(struct config *c, struct ek_fault *f, const char *const *words)
{
    char copy[16][64], *argv[17] = {NULL};
    int n = 0;
    for (; words[n]; n++) {
        (void)strncpy(copy[n], words[n], sizeof(copy[n]) - 1);
        copy[n][sizeof(copy[n]) - 1] = '\0';
        argv[n] = copy[n];
    }
    return config_parse(n, argv, c, f);
}

static void test_flags(void **state)
{
    (void)state;
    struct config c = {0};
    struct ek_fault f = {0};
    const char *const one[] = {
        "evenkeeld", "--model", "/m", "--port",         "0", "--run-dir", "/r", "--state-dir", "/s",
        "--devices", "1,3",     "--", "--max-num-seqs", "4", NULL};
    assert_int_equal(parse(&c, &f, one), 0);
    assert_string_equal(c.servers[0].devices, "1,3");
    assert_int_equal(c.servers[0].device_set, 1u << 1 | 1u << 3);
    assert_int_equal(c.count, 1);
    const struct server_config *s = &c.servers[0];
    assert_string_equal(s->name, "main");
    assert_string_equal(s->control_socket, "/r/main/control.sock");
    assert_string_equal(c.listen_host, "127.0.0.1");
    assert_int_equal(c.listen_port, 9464);
    static const char *const want[] = {"--model",
                                       "/m",
                                       "--max-num-seqs",
                                       "4",
                                       "--control-socket",
                                       "/r/main/control.sock",
                                       "--listen-from-control",
                                       "--prefix-file",
                                       "/s/main.prefixes/cache"};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        assert_string_equal(s->argv[i + 1], want[i]);
    assert_null(s->argv[10]);
    config_free(&c);
}

/* What a command says about its address counts; a contradiction is refused. */
static void test_reads_the_address_of_a_command(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wrong, *host;
        uint64_t port;
    } cases[] = {
        {"command: [x, --port, \"19778\"]", NULL, "127.0.0.1", 19778},
        {"command: [x, --port=19778, --host, 0.0.0.0]", NULL, "0.0.0.0", 19778},
        {"command: [x, --port, \"1\", --port, \"19778\"]", NULL, "127.0.0.1", 19778},
        {"port: 19778\n    command: [x, --port, \"19778\"]", NULL, "127.0.0.1", 19778},
        {"port: 19778\n    command: [x]", NULL, "127.0.0.1", 19778},
        {"engine: vllm\n    command: [x, --port, \"19778\", --host, 0.0.0.0]", NULL, "127.0.0.1",
         19778},
        {"port: 8001\n    command: [x, --port, \"19778\"]", "leave one out", NULL, 0},
        {"host: 10.0.0.1\n    command: [x, --host, 10.0.0.2]", "leave one out", NULL, 0},
        {"command: [x, --port, http]", "no port", NULL, 0},
        {"command: [x, --port]", NULL, "127.0.0.1", 8000},
        {"model: m\n    args: [--port, \"19778\", --host, 0.0.0.0]", NULL, "0.0.0.0", 19778},
        {"engine: vllm\n    model: m\n    args: [--port=19778, --host, 0.0.0.0]\n    companion: "
         "\"off\"",
         NULL, "127.0.0.1", 19778},
        {"command: [x, --port, \"1\"]\n    args: [--port, \"19778\"]", NULL, "127.0.0.1", 19778},
        {"model: m\n    port: 8001\n    args: [--port, \"19778\"]", "args says --port 19778", NULL,
         0},
        {"model: m\n    args: [\"--port 19778\"]", "args has '--port 19778' as one word", NULL, 0},
        {"command: [wrapper, \"--run\", \"--tp 2 --x\"]", NULL, "127.0.0.1", 8000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        char text[256];
        (void)snprintf(text, sizeof(text), "servers:\n  a:\n    %s\n", cases[i].text);
        char path[] = "/tmp/evenkeel-test-XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
        const char *const words[] = {"evenkeeld", "--config", path, "--run-dir", "/r", NULL};
        int r = parse(&c, &f, words);
        (void)unlink(path);
        if (cases[i].wrong) {
            assert_int_equal(r, -EBADMSG);
            assert_non_null(strstr(f.msg, cases[i].wrong));
        } else {
            assert_int_equal(r, 0);
            assert_int_equal(c.servers[0].port, cases[i].port);
            assert_string_equal(c.servers[0].host, cases[i].host);
        }
        config_free(&c);
    }
}

/* Where a unit's server keeps its prefixes: in the folder of the packages' unit, and not in others.
 */
static void test_prefixes_of_units(void **state)
{
    static const struct {
        const char *server, *file; /* NULL = no such flag */
    } cases[] = {
        {"launcher: systemd", "/var/lib/evenkeel-managed/a/cache"},
        {"launcher: systemd\n    unit: evenkeel-managed@a.service",
         "/var/lib/evenkeel-managed/a/cache"},
        {"launcher: systemd\n    unit: evenkeel-managed@b.service", NULL},
        {"launcher: systemd\n    unit: mine.service", NULL},
        {"launcher: systemd\n    warm_restart: false", NULL},
        {"launcher: systemd\n    args: [--prefix-file, /mine]", "/mine"},
        {"launcher: systemd\n    engine: vllm\n    unit: v.service\n    port: 8001", NULL},
        {"model: /m", "/s/a.prefixes/cache"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        const char *file = NULL;
        uint32_t times = 0;
        char text[256], path[] = "/tmp/evenkeel-test-XXXXXX";
        (void)snprintf(text, sizeof(text), "servers:\n  a:\n    %s\n", cases[i].server);
        int fd = mkstemp(path);
        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
        const char *const words[] = {"evenkeeld", "--config",    path, "--run-dir",
                                     "/r",        "--state-dir", "/s", NULL};
        int r = parse(&c, &f, words);
        (void)unlink(path);
        if (r != 0)
            fail_msg("%s", f.msg);
        for (char **a = c.servers[0].argv; *a; a++)
            if (strcmp(*a, "--prefix-file") == 0) {
                file = a[1];
                times++;
            }
        assert_int_equal(times, cases[i].file ? 1 : 0);
        if (cases[i].file)
            assert_string_equal(file, cases[i].file);
        config_free(&c);
    }
}

/* A key in a file of flags is among the words, as that file, once. */
static void test_key_in_flags(void **state)
{
    static const struct {
        const char *server, *wrong; /* NULL: taken */
    } cases[] = {
        {"engine: vllm\n    command: [vllm, serve, m, --port, \"8001\"]", NULL},
        {"engine: vllm\n    model: m\n    port: 8001\n    companion: \"off\"", NULL},
        {"engine: vllm\n    command: [vllm, serve, m, --config=other.yaml]", "among its arguments"},
        {"engine: vllm\n    model: m\n    port: 8001\n    args: [--config, other.yaml]",
         "among its arguments"},
    };
    char key[] = "/tmp/evenkeel-test-XXXXXX.yaml";
    int fd = mkstemps(key, 5);
    (void)state;
    assert_true(fd >= 0 && write(fd, "api-key: sk-abc\n", 16) == 16);
    (void)close(fd);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        char text[400], path[] = "/tmp/evenkeel-test-XXXXXX";
        (void)snprintf(text, sizeof(text), "servers:\n  a:\n    api_key_file: %s\n    %s\n", key,
                       cases[i].server);
        fd = mkstemp(path);
        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
        const char *const words[] = {"evenkeeld", "--config", path, "--run-dir", "/r", NULL};
        int r = parse(&c, &f, words);
        (void)unlink(path);
        if (cases[i].wrong) {
            assert_int_equal(r, -EBADMSG);
            assert_non_null(strstr(f.msg, cases[i].wrong));
        } else {
            assert_int_equal(r, 0);
            size_t n = 0;
            while (c.servers[0].argv[n])
                n++;
            assert_string_equal(c.servers[0].argv[n - 2], "--config");
            assert_string_equal(c.servers[0].argv[n - 1], key);
        }
        config_free(&c);
    }
    (void)unlink(key);
}

/* What a flag does not say, the file may that the command names. */
static void test_reads_the_address_in_a_file(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        unsigned port;
    } cases[] = {
        {"[vllm, serve, m, --config, %s]", 19779},
        {"[vllm, serve, m, --config=%s, --port, \"19778\"]", 19778},
        {"[vllm, serve, m, --config, %s-not-there]", 8000},
    };
    static const char said[] = "model: m\nport: 19779\nhost: \"0.0.0.0\"\nrope: {a: 1}\n";
    char file[] = "/tmp/evenkeel-test-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0 && write(fd, said, strlen(said)) == (ssize_t)strlen(said));
    (void)close(fd);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        char command[128], text[256], path[] = "/tmp/evenkeel-test-XXXXXX";
        const char *at = strstr(cases[i].command, "%s");
        (void)snprintf(command, sizeof(command), "%.*s%s%s", (int)(at - cases[i].command),
                       cases[i].command, file, at + 2);
        (void)snprintf(text, sizeof(text), "servers:\n  a:\n    engine: vllm\n    command: %s\n",
                       command);
        fd = mkstemp(path);
        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
        const char *const words[] = {"evenkeeld", "--config", path, "--run-dir", "/r", NULL};
        assert_int_equal(parse(&c, &f, words), 0);
        (void)unlink(path);
        assert_int_equal(c.servers[0].port, cases[i].port);
        config_free(&c);
    }
    (void)unlink(file);
}

/* What may lie in servers_dir under a server's name. */
static void test_files_of_servers(void **state)
{
    (void)state;
    static const struct {
        const char *link;  /* what a.yaml leads to; NULL: a FIFO */
        const char *wrong; /* NULL: taken, with `count` servers */
        size_t count;
    } cases[] = {
        {"real", NULL, 1},
        {"/dev/null", NULL, 0}, /* hides it */
        {NULL, "/a.yaml is no regular file", 0},
        {"/dev/zero", "/a.yaml is no regular file", 0},
        {"/", "/a.yaml is no regular file", 0},
        {"not-there", "cannot read", 0},
    };
    char dir[] = "/tmp/evenkeel-test-XXXXXX", file[64], real[64], config[64], text[128];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/a.yaml", dir);
    (void)snprintf(real, sizeof(real), "%s/real", dir);
    (void)snprintf(config, sizeof(config), "%s/config", dir);
    (void)snprintf(text, sizeof(text), "servers_dir: %s\n", dir);
    assert_int_equal(ek_file_replace(real, "model: /m\n", 10, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(ek_file_replace(config, text, strlen(text), 0600, EK_FILE_PLAIN), 0);
    (void)alarm(20); /* a FIFO without a writer held for ever */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        const char *const words[] = {"evenkeeld", "--config", config, "--run-dir", "/r", NULL};
        assert_int_equal(cases[i].link ? symlink(cases[i].link, file) : mkfifo(file, 0600), 0);
        int r = parse(&c, &f, words);
        (void)unlink(file);
        assert_int_equal(r, cases[i].wrong ? -EBADMSG : 0);
        if (cases[i].wrong)
            assert_non_null(strstr(f.msg, cases[i].wrong));
        else
            assert_int_equal(c.count, cases[i].count);
        config_free(&c);
    }
    (void)alarm(0);
    (void)unlink(real);
    (void)unlink(config);
    (void)rmdir(dir);
}

static void test_bad_flags(void **state)
{
    (void)state;
    static const struct {
        const char *words[5];
        const char *says;
    } cases[] = {
        {{"evenkeeld", NULL}, "nothing to do"},
        {{"evenkeeld", "--log-levle", "x", NULL}, "--log-level"},
        {{"evenkeeld", "--config", NULL}, "needs a file"},
        {{"evenkeeld", "--confg", "x", NULL}, "did you mean --config?"},
        {{"evenkeeld", "--config", "/nonexistent/x", NULL}, "cannot open"},
        {{"evenkeeld", "--model=/m", "--listen=host", NULL}, "HOST:PORT"},
        {{"evenkeeld", "--model=/m", "--listen=a:99999", NULL}, "HOST:PORT"},
        {{"evenkeeld", "--model=/m", "--name=A B", NULL}, "server name"},
        {{"evenkeeld", "--config=/c", "--model=/m", NULL}, "--model describes a server"},
        {{"evenkeeld", "--config=/c", "--devices=0", NULL}, "--devices describes a server"},
        {{"evenkeeld", "--config=/c", "--env=A=1", NULL}, "--env describes a server"},
        {{"evenkeeld", "--config=/c", "--", "--x", NULL}, "what follows -- describes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c = {0};
        struct ek_fault f = {0};
        assert_int_equal(parse(&c, &f, cases[i].words), -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu says: %s", i, f.msg);
        config_free(&c);
    }
}

static void test_allocation(void **state)
{
    (void)state;
    const char *const words[] = {"evenkeeld", "--model", "/m",  "--run-dir",
                                 "/r",        "--env",   "A=1", NULL};
    for (long n = 1;; n++) {
        struct config c = {0};
        struct ek_fault f = {0};
        alloc_fail_at(n);
        int r = parse(&c, &f, words);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        if (!failed) {
            assert_int_equal(r, 0);
            config_free(&c);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_int_equal(c.count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_servers),
        cmocka_unit_test(test_reads_the_address_of_a_command),
        cmocka_unit_test(test_prefixes_of_units),
        cmocka_unit_test(test_key_in_flags),
        cmocka_unit_test(test_reads_the_address_in_a_file),
        cmocka_unit_test(test_foreign_engine),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_files_of_servers),
        cmocka_unit_test(test_bad_flags),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_server_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
