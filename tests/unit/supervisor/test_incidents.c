/* The incident log and the charts on disk: what is written is read, what is damaged is skipped and
 * counted, both are bounded. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/io/behind.h"
#include "supervisor/io/charts.h"
#include "supervisor/io/incidents.h"
#include "tests/unit/alloc.h"

#define NOW_S 1795370587u

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/evenkeel-incidents-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static int drop_dir(void **state)
{
    static const char *const names[] = {"incidents.log", "incidents.1.log", "charts-s1.bin"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)unlink(path_of(names[i]));
    return rmdir(dir);
}

struct incidents_seen {
    char text[4096];
    size_t bytes;
};

static void each(void *ctx, const char *kind, const char *json, size_t len)
{
    struct incidents_seen *s = ctx;
    size_t n = strlen(s->text);
    s->bytes += len;
    if (n + len + 40 < sizeof(s->text))
        (void)snprintf(s->text + n, sizeof(s->text) - n, "%s%.*s;", kind, (int)len, json);
}

static struct incidents_count read_back(struct incidents_seen *s)
{
    struct ek_buf text = {0};
    struct incidents_count count;
    *s = (struct incidents_seen){0};
    assert_int_equal(incidents_read(dir, &text), 0);
    incidents_parse(text.data ? text.data : "", text.len, each, s, &count);
    ek_buf_done(&text);
    return count;
}

static void write_some(const char *const *json, size_t n)
{
    struct behind *b;
    struct incidents *in;
    assert_int_equal(behind_new(dir, &b), 0);
    assert_int_equal(incidents_new(b, dir, &in), 0);
    for (size_t i = 0; i < n; i++)
        incidents_append(in, "a", json[i], strlen(json[i]));
    assert_true(behind_free(b));
    incidents_free(in);
}

static void test_round_trip(void **state)
{
    static const char *const first[] = {"{\"x\":1}", "{}"}, *const second[] = {"{\"y\":2}"};
    struct incidents_seen s;
    (void)state;
    struct incidents_count c = read_back(&s);
    assert_int_equal(c.records + c.damaged, 0); /* no file yet */
    write_some(first, 2);
    write_some(second, 1);
    c = read_back(&s);
    assert_int_equal(c.records, 3);
    assert_int_equal(c.damaged, 0);
    assert_string_equal(s.text, "a{\"x\":1};a{};a{\"y\":2};");
    struct stat st;
    assert_int_equal(stat(path_of("incidents.log"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    incidents_append(NULL, "a", "{}", 2);
}

/* Cut at each byte, one bit flipped in each byte: at most that record is lost, and the next one is
 * read whatever stands before it. */
static void test_damage(void **state)
{
    static const char *const json[] = {"{\"x\":1}", "{\"y\":2}", "{\"z\":3}"}, *const more[] = {
                                                                                   "{\"after\":4}"};
    char whole[512];
    struct incidents_seen s;
    (void)state;
    write_some(json, 3);
    int fd = open(path_of("incidents.log"), O_RDONLY);
    ssize_t n = read(fd, whole, sizeof(whole));
    assert_true(n > 60 && n < (ssize_t)sizeof(whole));
    close(fd);
    for (ssize_t cut = 0; cut < n; cut++) {
        fd = open(path_of("incidents.log"), O_WRONLY | O_TRUNC);
        assert_int_equal(write(fd, whole, (size_t)cut), cut);
        close(fd);
        write_some(more, 1);
        struct incidents_count c = read_back(&s);
        assert_true(c.damaged <= 1);
        assert_non_null(strstr(s.text, "a{\"after\":4};"));
        assert_int_equal(c.records >= 3, cut >= 2 * n / 3 - 1); /* all are of one length */
    }
    for (ssize_t at = 0; at < n; at++) {
        struct incidents_count c;
        char copy[512];
        memcpy(copy, whole, (size_t)n);
        copy[at] ^= 0x10;
        s = (struct incidents_seen){0};
        incidents_parse(copy, (size_t)n, each, &s, &c);
        assert_in_range(c.records, 1, 2);
        assert_in_range(c.damaged, 1, 2); /* two when it was the end of a line */
    }
}

static void test_bounded(void **state)
{
    struct behind *b;
    struct incidents *in;
    struct incidents_seen s;
    struct stat st;
    char json[2048], last[64];
    (void)state;
    memset(json, 'x', sizeof(json) - 1);
    json[sizeof(json) - 1] = '\0';
    assert_int_equal(behind_new(dir, &b), 0);
    assert_int_equal(incidents_new(b, dir, &in), 0);
    unsigned records = 5 * INCIDENTS_BYTES / 2 / sizeof(json);
    for (unsigned i = 0; i < records; i++) {
        if (i % 32 == 0)
            assert_true(behind_flush(b, 60000));
        incidents_append(in, "a", json, sizeof(json) - 1);
    }
    (void)snprintf(last, sizeof(last), "{\"last\":%u}", records);
    incidents_append(in, "last", last, strlen(last));
    assert_true(behind_flush(b, 60000));
    assert_int_equal(behind_lost(b), 0);
    assert_int_equal(stat(path_of("incidents.log"), &st), 0);
    assert_true(st.st_size <= (off_t)INCIDENTS_BYTES);
    assert_int_equal(stat(path_of("incidents.1.log"), &st), 0);
    assert_true(st.st_size <= (off_t)INCIDENTS_BYTES);
    struct incidents_count c = read_back(&s);
    assert_int_equal(c.damaged, 0);
    assert_in_range(c.records, INCIDENTS_BYTES / sizeof(json), 2 * INCIDENTS_BYTES / sizeof(json));

    assert_int_equal(unlink(path_of("incidents.log")), 0); /* somebody tidies up */
    incidents_append(in, "last", last, strlen(last));
    assert_true(behind_free(b));
    incidents_free(in);
    assert_int_equal(stat(path_of("incidents.log"), &st), 0);
    assert_true(st.st_size < 100);
}

static void test_a_directory_that_is_gone(void **state)
{
    struct behind *b;
    struct incidents *in;
    struct incidents_seen s;
    (void)state;
    assert_int_equal(behind_new("/nonexistent", &b), 0);
    assert_int_equal(incidents_new(b, "/nonexistent", &in), 0);
    incidents_append(in, "a", "{}", 2);
    incidents_append(in, "a", "{\"a\n\":1}", 8); /* would be two lines */
    assert_true(behind_flush(b, 60000));
    assert_int_equal(behind_lost(b), 1);
    assert_true(behind_free(b));
    incidents_free(in);
    assert_int_equal(mkdir(path_of("incidents.log"), 0700), 0); /* no file */
    static const char *const json[] = {"{}"};
    write_some(json, 1);
    assert_int_equal(rmdir(path_of("incidents.log")), 0);
    assert_int_equal(read_back(&s).records, 0);
}

static void test_when(void **state)
{
    static const struct {
        const char *json;
        uint64_t us;
    } cases[] = {
        {"{\"server\":\"s1\",\"at_s\":1795370587.168653,\"x\"", 1795370587168653},
        {"{\"server\":\"s1\",\"at_s\":5}", 5000000},
        {"{\"server\":\"s1\",\"at_s\":5.1234567891", 5123456},
        {"{\"server\":\"s1\",\"at_s\":", 0},
        {"{\"server\":\"s1\",\"at_s\":-5", 0},
        {"{\"server\":\"s12\",\"at_s\":5}", 0},
        {"{\"server\":\"s\",\"at_s\":5}", 0},
        {"{\"at_s\":5,\"server\":\"s1\"}", 0},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(incidents_when(cases[i].json, strlen(cases[i].json), "s1"), cases[i].us);
}

/* Charts */

static void push_row(struct history *h, uint32_t at_s, float v)
{
    float row[HISTORY_COLUMNS];
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        row[c] = c == HIST_WAITING ? NAN : v + (float)c;
    history_push(h, at_s * EK_US_PER_S, row);
}

static struct history *fresh_history(void)
{
    struct history *h = calloc(1, sizeof(*h));
    assert_non_null(h);
    return h;
}

/* Writes rows from NOW_S - n + 1 to NOW_S. */
static void write_charts(uint32_t n)
{
    struct behind *b;
    struct charts *c;
    struct history *h = fresh_history();
    uint32_t damaged = 9;
    assert_int_equal(behind_new(dir, &b), 0);
    assert_int_equal(charts_open(b, dir, "s1", NOW_S * EK_US_PER_S, h, &c, &damaged), 0);
    assert_int_equal(damaged, 0);
    for (uint32_t t = NOW_S - n + 1; t <= NOW_S; t++) {
        push_row(h, t, (float)(t % 1000));
        charts_put(c, h);
        if (t % 1000 == 0)
            assert_true(behind_flush(b, 60000));
    }
    assert_true(behind_flush(b, 60000));
    charts_free(c);
    assert_true(behind_free(b));
    free(h);
    charts_put(NULL, NULL);
}

static struct history *read_charts(uint64_t now_s, uint32_t *ret_damaged)
{
    struct behind *b;
    struct charts *c;
    struct history *h = fresh_history();
    assert_int_equal(behind_new(dir, &b), 0);
    assert_int_equal(charts_open(b, dir, "s1", now_s * EK_US_PER_S, h, &c, ret_damaged), 0);
    charts_free(c);
    assert_true(behind_free(b));
    return h;
}

static void test_charts(void **state)
{
    uint32_t damaged;
    struct stat st;
    (void)state;
    write_charts(HISTORY_ROWS + 100);
    struct history *h = read_charts(NOW_S, &damaged);
    assert_int_equal(damaged, 0);
    assert_int_equal(h->count, HISTORY_ROWS);
    assert_int_equal(h->at_s[0], NOW_S - HISTORY_ROWS + 1);
    assert_int_equal(h->at_s[HISTORY_ROWS - 1], NOW_S);
    assert_true(h->value[HISTORY_ROWS - 1][HIST_RUNNING] == (float)(NOW_S % 1000 + HIST_RUNNING));
    assert_true(isnan(h->value[5][HIST_WAITING]));
    free(h);
    assert_int_equal(stat(path_of("charts-s1.bin"), &st), 0);
    assert_int_equal(st.st_size, CHARTS_HEAD + HISTORY_ROWS * (HISTORY_COLUMNS + 2) * 4);
    h = read_charts(NOW_S + 7000,
                    &damaged); /* a while later: what is older than two hours is gone */
    assert_int_equal(h->count, 200);
    free(h);
    h = read_charts(NOW_S - 100, &damaged); /* the clock was set back */
    assert_int_equal(h->count, HISTORY_ROWS - 100);
    free(h);
}

static void test_damaged_charts(void **state)
{
    uint32_t damaged;
    (void)state;
    write_charts(10);
    int fd = open(path_of("charts-s1.bin"), O_RDWR);
    off_t at = CHARTS_HEAD + (off_t)(NOW_S % HISTORY_ROWS) * (HISTORY_COLUMNS + 2) * 4;
    assert_int_equal(pwrite(fd, "?", 1, at + 9), 1);
    close(fd);
    struct history *h = read_charts(NOW_S, &damaged);
    assert_int_equal(damaged, 1);
    assert_int_equal(h->count, 9);
    free(h);
    assert_int_equal(truncate(path_of("charts-s1.bin"), at - 6), 0); /* cut short */
    h = read_charts(NOW_S, &damaged);
    assert_int_equal(damaged, 0);
    assert_int_equal(h->count, 8);
    free(h);
    assert_int_equal(truncate(path_of("charts-s1.bin"), 100), 0); /* begun again */
    h = read_charts(NOW_S, &damaged);
    assert_int_equal(h->count, 0);
    free(h);
    write_charts(3);
    h = read_charts(NOW_S, &damaged);
    assert_int_equal(h->count, 3);
    free(h);
}

/* A version with other columns: those that both have are kept, and the file becomes ours. */
static void test_other_columns(void **state)
{
    char head[CHARTS_HEAD] = "evenkeel charts 1 le gone,running\n";
    uint32_t damaged;
    struct {
        uint32_t at_s;
        float value[2];
        uint32_t sum;
    } row = {NOW_S, {7, 42}, 0};
    (void)state;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
        skip();
    row.sum = 0xdeadbeef;
    int fd = open(path_of("charts-s1.bin"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
    off_t at = CHARTS_HEAD + (off_t)(NOW_S % HISTORY_ROWS) * (off_t)sizeof(row);
    assert_int_equal(pwrite(fd, &row, sizeof(row), at), sizeof(row));
    struct history *h = read_charts(NOW_S, &damaged);
    assert_int_equal(damaged, 1); /* and it is ours now */
    assert_int_equal(h->count, 0);
    free(h);
    row.sum = (uint32_t)crc32(0, (const Bytef *)&row, 12);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
    assert_int_equal(pwrite(fd, &row, sizeof(row), at), sizeof(row));
    close(fd);
    for (int again = 0; again < 2; again++) {
        h = read_charts(NOW_S, &damaged);
        assert_int_equal(damaged, 0);
        assert_int_equal(h->count, 1);
        assert_true(h->value[0][HIST_RUNNING] == 42);
        assert_true(isnan(h->value[0][HIST_KV_USAGE]));
        free(h);
    }
}

static void test_out_of_memory(void **state)
{
    static const char *const json[] = {"{\"x\":1}"};
    (void)state;
    write_some(json, 1);
    write_charts(3);
    for (long n = 1;; n++) {
        struct ek_buf text = {0};
        alloc_fail_at(n);
        int r = incidents_read(dir, &text);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        ek_buf_done(&text);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed)
            break;
    }
    for (long n = 1;; n++) {
        struct behind *b = NULL;
        struct incidents *in = NULL;
        struct charts *c = NULL;
        struct history *h = fresh_history();
        uint32_t damaged;
        alloc_fail_at(n);
        int r = behind_new(dir, &b);
        if (r == 0)
            r = incidents_new(b, dir, &in);
        if (r == 0)
            r = charts_open(b, dir, "s1", NOW_S * EK_US_PER_S, h, &c, &damaged);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        charts_free(c);
        assert_true(behind_free(b));
        incidents_free(in);
        free(h);
        if (!failed)
            break;
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip),       TEST(test_damage),
        TEST(test_bounded),          TEST(test_a_directory_that_is_gone),
        cmocka_unit_test(test_when), TEST(test_charts),
        TEST(test_damaged_charts),   TEST(test_other_columns),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
