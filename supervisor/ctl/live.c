/*
 * Runs `evenkeelctl diagnose --live` for verb_diagnose.c. All servers are read twice, some seconds
 * apart, since most rules need a difference; then the rules of doctor/live.h are asked and
 * live_show.c prints. With --watch it goes on until a signal, and only changes are printed.
 */
#include "supervisor/ctl/live.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/options.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/fetch.h"
#include "supervisor/ctl/live_show.h"
#include "supervisor/ctl/verb.h"
#include "supervisor/engines/dialect.h"

#define REPLICAS_MOST 64

struct replica {
    struct live_page before, now;
    double max_model_len;
    uint64_t before_us, now_us; /* 0: no such reading */
    struct live_told told;
    bool silent; /* said so */
};

static int ctl_live_refuse(const char *said)
{
    (void)fprintf(stderr, "evenkeelctl diagnose: %s\n", said);
    return CTL_UNREACHED;
}

static double ask_length(const char *url, struct ek_buf *page)
{
    char said[200];
    if (fetch_page(url, "/v1/models", page, said) < 0)
        return -1;
    json_t *j = json_loadb(page->data ? page->data : "", page->len, 0, NULL);
    const json_t *m = json_array_get(json_object_get(j, "data"), 0);
    double v = json_number_value(json_object_get(m, "max_model_len"));
    json_decref(j);
    return v > 0 ? v : -1;
}

static void say_unknown(const char *url, char said[200])
{
    int n = snprintf(said, 200, "%.120s/metrics has no metric of", url);
    for (uint32_t i = 0; dialect_at(i) && n < 200; i++) {
        if (!dialect_at(i)->companion)
            n +=
                snprintf(said + n, 200 - (size_t)n, "%s %s", i > 0 ? "," : "", dialect_at(i)->name);
    }
}

/* One more reading; the last becomes the one before. */
static int read_one(struct replica *r, char said[200])
{
    struct ek_buf text = {0};
    struct live_page page;
    int e = fetch_page(r->told.url, "/metrics", &text, said);
    if (e == 0)
        live_read(text.data ? text.data : "", text.len, &page);
    if (e == 0 && page.samples == 0) {
        say_unknown(r->told.url, said);
        e = -EBADMSG;
    }
    if (e == 0) {
        r->before = r->now;
        r->before_us = r->now_us;
        r->now = page;
        r->now_us = ek_now_us();
    }
    if (e == 0 && r->max_model_len == 0)
        r->max_model_len = ask_length(r->told.url, &text);
    ek_buf_done(&text);
    return e;
}

static int live_read_all(struct replica *all, size_t count, char said[200])
{
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++)
        r = read_one(&all[i], said);
    return r;
}

/* Numbers of the newest readings, for the rules. */
static void count_all(struct replica *all, struct live_page *pages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct replica *r = &all[i];
        double seconds = (double)(r->now_us - r->before_us) * 1e-6;
        pages[i] = r->now;
        live_numbers(&r->now, r->before_us ? &r->before : NULL, seconds, r->max_model_len,
                     &r->told.numbers);
    }
    for (size_t i = 0; i < count; i++)
        live_compare(pages, (uint32_t)count, &all[i].told.numbers);
}

static int ctl_live_tell(const struct live_request *q, const struct replica *all, size_t count)
{
    struct ek_buf out = {0};
    if (q->json) {
        json_t *list = json_array();
        for (size_t i = 0; list && i < count; i++)
            (void)json_array_append_new(list, live_json(&all[i].told, q->style.lang));
        json_t *j = json_pack("{s:o}", "servers", list);
        char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
        (void)ek_buf_printf(&out, "%s\n", text ? text : "");
        free(text);
        json_decref(j);
    }
    for (size_t i = 0; !q->json && i < count; i++)
        live_show(&all[i].told, &q->style, &out);
    return verb_print_buf(&out);
}

static void pause_s(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&pause, NULL); /* a signal makes it shorter: the time is measured */
}

/* A server that does not answer is told of once, and again when it does. */
static void watch_one(struct replica *r, const char *clock)
{
    char said[200];
    bool silent = read_one(r, said) < 0;
    if (silent && !r->silent)
        (void)fprintf(stderr, "%s  %s  %s\n", clock, r->told.url, said);
    else if (!silent && r->silent)
        (void)fprintf(stderr, "%s  %s  answers again\n", clock, r->told.url);
    r->silent = silent;
    if (silent)
        r->now_us = r->before_us = 0; /* what comes next is a beginning: it has no rates */
}

/* Until a signal ends the program or its output is closed. */
static int watch(const struct live_request *q, struct replica *all, struct live_page *pages,
                 size_t count)
{
    int code = CTL_OK;
    for (bool told = !q->json; code == CTL_OK; told = false) {
        char clock[16];
        struct ek_buf out = {0};
        struct tm now;
        time_t t = time(NULL);
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&t, &now));
        for (size_t i = 0; i < count; i++)
            live_changes(&all[i].told, clock, &q->style, q->json, &out);
        if (out.len > 0 && !told)
            code = verb_print_buf(&out);
        ek_buf_done(&out);
        pause_s(q->seconds);
        for (size_t i = 0; i < count; i++)
            watch_one(&all[i], clock);
        count_all(all, pages, count);
    }
    return code;
}

int live_run(const struct live_request *q)
{
    size_t count = q->urls->count < REPLICAS_MOST ? q->urls->count : REPLICAS_MOST;
    struct replica *all = calloc(count ? count : 1, sizeof(*all));
    struct live_page *pages = calloc(count ? count : 1, sizeof(*pages));
    char said[200] = "out of memory";
    int code = CTL_UNREACHED;
    if (!all || !pages)
        goto out;
    for (size_t i = 0; i < count; i++)
        all[i].told.url = q->urls->at[i];
    if (live_read_all(all, count, said) < 0)
        goto out;
    if (q->seconds > 0) {
        pause_s(q->seconds);
        if (live_read_all(all, count, said) < 0)
            goto out;
    }
    said[0] = '\0';
    count_all(all, pages, count);
    code = q->watch && q->json ? CTL_OK : ctl_live_tell(q, all, count);
    if (code == CTL_OK && q->watch)
        code = watch(q, all, pages, count);
out:
    if (said[0])
        code = ctl_live_refuse(said);
    free(all);
    free(pages);
    return code;
}
