/* What a model's file does to the child that parses it first, and what is said of it; what the
 * child hands back is what is read then, whatever becomes of the files, and only if it is in order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "common/file.h"
#include "server/check.h"
#include "server/confine.h"
#include "server/model/files.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/named.h"
#include "server/options.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

#define TINY "models/evenkeel-tiny"

/* A sanitizer's own memory knows no such limit, and it ends a process that gets none. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DATA_BYTES (1ull << 46)
#define CASES      7
#else
#define DATA_BYTES (256ull << 20)
#define CASES      8
#endif

static void ends_well(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
}

static void crashes(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
    check_stage(fd, "tokenizer.json");
    (void)raise(SIGKILL); /* as SIGSEGV, without a report */
}

static void loops(const void *ctx, int fd)
{
    volatile unsigned n = 0;
    (void)ctx;
    check_stage(fd, "the chat template");
    for (;;)
        n++;
}

static void sleeps(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
    for (;;)
        (void)pause();
}

/* What was taken over may close the pipe that it is waited for by. */
static void hides(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "config.json");
    (void)close(fd);
    for (;;)
        (void)pause();
}

/* It cannot take back what it was refused. */
static void bounded(const void *ctx, int fd)
{
    struct rlimit l;
    (void)ctx;
    check_stage(fd, "the chat template");
    if (getrlimit(RLIMIT_CPU, &l) < 0 || l.rlim_max > 2)
        (void)raise(SIGKILL);
}

/* What parse_model() does with weights, whose file somebody cuts in the meantime. */
static void reads_what_is_cut(const void *ctx, int fd)
{
    char path[] = "/tmp/evenkeel-check-XXXXXX";
    struct ek_weight_file f = {0};
    int file = mkstemp(path);
    (void)ctx;
    check_stage(fd, "config.json");
    if (file < 0 || ftruncate(file, 65536) < 0 ||
        model_file_map("/tmp", path + 5, &f, NULL, NULL) < 0)
        _exit(1);
    (void)unlink(path);
    (void)sigbus_watch(NULL, CHECK_CUT_SHORT);
    if (ftruncate(file, 0) < 0)
        _exit(1);
    _exit(*(const volatile char *)f.data);
}

/* As the parsers: -ENOMEM goes up, and the child ends with its code. */
static void swallows(const void *ctx, int fd)
{
    (void)ctx;
    check_stage(fd, "tokenizer.json");
    for (size_t i = 0; i < 1024; i++) {
        char *p = malloc(16u << 20);
        if (!p)
            _exit(3);
        memset(p, 1, 4096);
    }
}

static void test_ends(void **state)
{
    static const struct {
        void (*parse)(const void *ctx, int fd);
        const char *says, *file; /* NULL = the start goes on */
    } cases[] = {{ends_well, NULL, NULL},
                 {crashes, "ended with signal 9", "tokenizer.json"},
                 {loops, "too much processor time", "the chat template"},
                 {sleeps, "longer than 1 s", "config.json"},
                 {hides, "ended with signal 9", "config.json"},
                 {bounded, NULL, NULL},
                 {reads_what_is_cut, "was cut short while it was read", ""},
                 {swallows, "too much memory", "tokenizer.json"}}; /* the last: see CASES */
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct check_limits limits = {.data_bytes = DATA_BYTES, .cpu_s = 1, .wall_s = 60};
        struct ek_fault fault = {0};
        struct check c;
        if (cases[i].parse == sleeps)
            limits.wall_s = 1;
        assert_int_equal(check_begin(&c, cases[i].parse, NULL, &limits), 0);
        int r = check_wait(&c, "/models/m", &fault);
        if (!cases[i].says) {
            assert_int_equal(r, 0);
            continue;
        }
        assert_int_equal(r, -EBADMSG);
        if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, cases[i].file) ||
            !strstr(fault.msg, "/models/m"))
            fail_msg("%s", fault.msg);
        assert_int_equal(check_wait(&c, "/models/m", &fault), 0); /* once */
    }
}

/* ---- what is handed back ---- */

static const char *const files[] = {"config.json",
                                    "generation_config.json",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "chat_template.jinja",
                                    "model.safetensors",
                                    "special_tokens_map.json"};
#define FILES  (sizeof(files) / sizeof(files[0]))
#define MAPPED 5 /* the one of the weights */

/* A copy of the small model, and the options that name it. */
struct copy {
    char dir[64];
    struct options o;
};

static void write_file(const struct copy *c, const char *name, const char *text, size_t len)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", c->dir, name);
    assert_int_equal(ek_file_replace(path, text, len, 0644, EK_FILE_PLAIN), 0);
}

static void copy_begin(struct copy *c)
{
    static char any[] = "auto", none[] = "cpu";
    *c = (struct copy){.dir = "/tmp/evenkeel-check-XXXXXX"};
    assert_non_null(mkdtemp(c->dir));
    for (size_t i = 0; i < FILES; i++) {
        struct ek_buf text = {0};
        char path[128];
        (void)snprintf(path, sizeof(path), TINY "/%s", files[i]);
        if (ek_file_read("x", path, 64u << 20, &text, NULL) == 0)
            write_file(c, files[i], text.data, text.len);
        ek_buf_done(&text);
    }
    c->o = (struct options){.model = c->dir,
                            .sandbox = true,
                            .device = none,
                            .dtype = any,
                            .quantization = any,
                            .kv_cache_dtype = any,
                            .generation_config = any,
                            .weights_checksums = any};
}

static void copy_done(struct copy *c)
{
    char path[128];
    for (size_t i = 0; i < FILES; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", c->dir, files[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(c->dir), 0);
}

/* What a server reads; its texts, too. Without a child (under sanitizers) from the files. */
static int read_model(const struct copy *c, const struct check *k, struct ek_fault *fault)
{
    struct model *m = NULL;
    struct tokenizer *tok = NULL;
    struct chat *chat = NULL;
    const char *dir = k->dir[0] ? k->dir : c->dir;
    int r = named_model(&c->o, dir, NULL, k->model, &m, fault);
    if (r == 0)
        r = tokenizer_load_from(k->text, dir, &tok, fault);
    if (r == 0)
        r = chat_load_from(k->text, dir, NULL, &chat, fault);
    if (r == 0) {
        assert_int_equal(m->graph.vocab, 4128);
        assert_int_equal(tokenizer_count(tok), 4100);
        assert_non_null(chat);
    }
    chat_free(chat);
    tokenizer_free(tok);
    model_free(m);
    return r;
}

/* Files that are put in the place of those that were checked are not read, and of the weights,
 * which are read, they are noticed. */
static void test_swapped(void **state)
{
    struct check k;
    struct ek_fault f = {0};
    struct copy c;
    (void)state;
    copy_begin(&c);
    if (!confine_is_on(&c.o)) {
        copy_done(&c);
        skip(); /* a build with sanitizers has no child */
    }
    check_model(&k, &c.o);
    assert_int_equal(check_take(&k, &f), 0);
    assert_int_equal(check_take(&k, &f), 0); /* once */
    if (read_model(&c, &k, &f) != 0)
        fail_msg("%s", f.msg);
    for (size_t i = 0; i < FILES; i++)
        if (i != MAPPED)
            write_file(&c, files[i], i % 2 ? "{% broken" : "{\"vocab_size\": 7}", i % 2 ? 9 : 17);
    if (read_model(&c, &k, &f) != 0)
        fail_msg("%s", f.msg);
    write_file(&c, files[MAPPED], "\2\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(read_model(&c, &k, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "model.safetensors: is not the file that it was"));
    check_done(&k);
    check_done(&k);
    copy_done(&c);
}

/* Faults of the files come through, with the place where they are. */
static void test_faults(void **state)
{
    static const struct {
        const char *file, *text, *says;
        size_t len; /* 0 = to its NUL */
    } cases[] = {
        {"config.json", "{\n\"a\": }", "config.json: line 2: ", 0},
        {"config.json", "{\"hidden_size\": 1, \"hidden_size\": 2}", "config.json: line 1: dupl", 0},
        {"config.json", "{\n  \"a\": 1,\r\n\r\n  \"a\": 2\n}\n", "config.json: line 4: dupl", 0},
        {"config.json", "[1]", "config.json: must be a JSON object", 0},
        {"generation_config.json", "", "generation_config.json: line 1: ", 0},
        {"model.safetensors", "short", "model.safetensors: has 5 bytes", 0},
        {"model.safetensors", "\2\0\0\0\0\0\0\0{ ", "model.safetensors: line 1: ", 10},
        {"tokenizer.json", "{\"a\":\n\n1", "tokenizer.json: line 3: ", 0},
        {"chat_template.jinja", "{% broken", "chat_template", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct check k;
        struct ek_fault f = {0};
        struct copy c;
        copy_begin(&c);
        write_file(&c, cases[i].file, cases[i].text,
                   cases[i].len ? cases[i].len : strlen(cases[i].text));
        check_model(&k, &c.o);
        assert_int_equal(check_take(&k, &f), 0);
        assert_int_equal(read_model(&c, &k, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says) && !strstr(f.field, cases[i].says))
            fail_msg("%zu: %s", i, f.msg);
        check_done(&k);
        copy_done(&c);
    }
}

/* What a child could do that somebody has taken over. */
static void hands_back(const struct check *k, int how)
{
    static const char lie[] = "{\"architectures\":[\"X\"]}";
    struct ek_bundle *model = NULL, *text = NULL;
    char name[4200];
    (void)snprintf(name, sizeof(name), "%s/config.json", k->dir);
    (void)ek_bundle_begin(k->model_fd, &model);
    (void)ek_bundle_begin(k->text_fd, &text);
    (void)ek_bundle_add(
        model, &(struct ek_bundle_part){.name = name, .text = lie, .len = sizeof(lie) - 1});
    if (how != 0)
        (void)ek_bundle_end(model);
    if (how == 1)
        (void)!write(k->model_fd, "more", 4);
    if (how != 2)
        (void)ek_bundle_end(text);
    if (how == 3)
        (void)!ftruncate(k->text_fd, (off_t)(EK_BUNDLE_MOST_BYTES * 2));
    if (how == 4)
        (void)!pwrite(k->text_fd, "X", 1, 0);
    if (how == 5)
        (void)fcntl(k->model_fd, F_ADD_SEALS, F_SEAL_SEAL); /* what is to be sealed cannot be */
}
#define HOWS 7 /* the last one is in order, but for what it says */

struct taken_over {
    struct check *k;
    int how;
};

static void taken_over(const void *ctx, int fd)
{
    const struct taken_over *t = ctx;
    check_stage(fd, "config.json");
    (void)signal(SIGXFSZ, SIG_IGN);
    hands_back(t->k, t->how);
}

static void test_hostile(void **state)
{
    const struct check_limits limits = {.data_bytes = 1ull << 46, .cpu_s = 10, .wall_s = 30};
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct check k = {.model_fd = ek_bundle_make(), .text_fd = ek_bundle_make()};
        struct taken_over t = {&k, how};
        struct ek_fault f = {0};
        struct copy c;
        copy_begin(&c);
        (void)snprintf(k.dir, sizeof(k.dir), "%s", c.dir);
        assert_int_equal(check_begin(&k, taken_over, &t, &limits), 0);
        int r = check_take(&k, &f);
        const bool whole = how == HOWS - 1 || how == 3; /* RLIMIT_FSIZE did not let it grow */
        if (r != (whole ? 0 : -EBADMSG) || (r < 0 && !strstr(f.msg, "not handed back")))
            fail_msg("%d: %d %s", how, r, f.msg);
        if (r == 0) {
            assert_int_equal(read_model(&c, &k, &f), -EBADMSG);
            assert_non_null(strstr(f.msg, "config.json"));
        }
        check_done(&k);
        copy_done(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_swapped),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
