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
#include "supervisor/ctl/verb.h"
#include "supervisor/doctor/live.h"
#include "supervisor/doctor/tell.h"

#define REPLICAS_MOST 64

struct replica {
    const char *url;
    struct live_page before, now;
    double max_model_len, seconds;
    struct doctor_numbers numbers;
};

static int refuse(const char *said)
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

static int read_all(struct replica *all, size_t count, bool again, char said[200])
{
    struct ek_buf page = {0};
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        r = fetch_page(all[i].url, "/metrics", &page, said);
        if (r < 0)
            break;
        struct live_page *to = again ? &all[i].now : &all[i].before;
        live_read(page.data ? page.data : "", page.len, to);
        if (to->samples == 0) {
            (void)snprintf(said, 200, "%.120s/metrics has none of vLLM's metrics", all[i].url);
            r = -EBADMSG;
        } else if (!again) {
            all[i].max_model_len = ask_length(all[i].url, &page);
        }
    }
    ek_buf_done(&page);
    return r;
}

static void put_number(const struct doctor_numbers *n, const char *name, const char *text,
                       struct ek_buf *out)
{
    const struct doctor_number *v = doctor_numbers_find(n, name);
    char number[32];
    (void)ek_buf_printf(out, "  %-34s %s\n", text,
                        v ? doctor_number_text(v->value, v->bytes, number) : "-");
}

/* The analysis that the guides print. */
static void put_blocks(const struct replica *r, enum doctor_lang lang, struct ek_buf *out)
{
    static const struct {
        const char *name;
        struct doctor_text text;
    } rows[] = {{"total_blocks", {{"KV blocks in all", "KV 块总数"}}},
                {"used_blocks", {{"used by requests", "请求占用"}}},
                {"free_blocks", {{"free (cached ones count as free)", "空闲(含可回收缓存)"}}},
                {"running", {{"requests running", "运行中的请求"}}},
                {"waiting", {{"requests waiting", "等待中的请求"}}},
                {"blocks_per_request", {{"blocks of a request, average", "平均每请求块数"}}},
                {"room_requests", {{"such requests that would fit besides", "还可容纳的请求数"}}},
                {"output_s", {{"output tokens a second", "每秒输出 token"}}}};
    (void)ek_buf_printf(out, "%s\n", r->url);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        put_number(&r->numbers, rows[i].name, rows[i].text.in[lang], out);
    doctor_tell(lang == LANG_ZH ? "  显存利用率                         {usage:pct}\n"
                                : "  memory utilization                 {usage:pct}\n",
                &r->numbers, out);
}

static void put_rules(const struct replica *r, const struct diagnose_style *style,
                      struct ek_buf *out)
{
    struct live_finding f[LIVE_RULES];
    static const struct doctor_text states[] = {
        {{"not known", "未知"}}, {{"fine", "正常"}}, {{"LOOK", "注意"}}};
    uint32_t count = live_judge(&r->numbers, f);
    for (uint32_t i = 0; i < count; i++) {
        bool applies = f[i].state == LIVE_APPLIES;
        (void)ek_buf_printf(out, "  %s%-10s%s %s\n", style->colour && applies ? "\033[1;33m" : "",
                            states[f[i].state].in[style->lang],
                            style->colour && applies ? "\033[0m" : "", f[i].title->in[style->lang]);
        if (!applies)
            continue;
        (void)ek_buf_puts(out, "             ");
        doctor_tell(f[i].text->in[style->lang], &r->numbers, out);
        (void)ek_buf_puts(out, "\n             ");
        if (f[i].flag)
            (void)ek_buf_printf(out, "%s%s%s: ", f[i].flag, f[i].has_value ? " " : "",
                                f[i].has_value ? f[i].value : "");
        doctor_tell(f[i].remedy->in[style->lang], &r->numbers, out);
        (void)ek_buf_puts(out, "\n");
    }
}

static json_t *replica_json(const struct replica *r, enum doctor_lang lang)
{
    static const char *const states[] = {"unknown", "fine", "applies"};
    struct live_finding f[LIVE_RULES];
    uint32_t count = live_judge(&r->numbers, f);
    json_t *numbers = json_object(), *rules = json_array();
    for (uint32_t i = 0; numbers && i < r->numbers.count; i++)
        (void)json_object_set_new(numbers, r->numbers.at[i].name,
                                  json_real(r->numbers.at[i].value));
    for (uint32_t i = 0; rules && i < count; i++) {
        struct ek_buf text = {0};
        if (f[i].state == LIVE_APPLIES)
            doctor_tell(f[i].text->in[lang], &r->numbers, &text);
        (void)json_array_append_new(rules, json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s?}", "id",
                                                     f[i].id, "state", states[f[i].state], "title",
                                                     f[i].title->in[lang], "why", text.data, "flag",
                                                     f[i].state == LIVE_APPLIES ? f[i].flag : NULL,
                                                     "value", f[i].has_value ? f[i].value : NULL));
        ek_buf_done(&text);
    }
    return json_pack("{s:s, s:o, s:o}", "url", r->url, "numbers", numbers, "rules", rules);
}

static int tell(const struct live_request *q, const struct replica *all, size_t count)
{
    struct ek_buf out = {0};
    if (q->json) {
        json_t *list = json_array();
        for (size_t i = 0; list && i < count; i++)
            (void)json_array_append_new(list, replica_json(&all[i], q->style.lang));
        json_t *j = json_pack("{s:o}", "servers", list);
        char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
        (void)ek_buf_printf(&out, "%s\n", text ? text : "");
        free(text);
        json_decref(j);
    }
    for (size_t i = 0; !q->json && i < count; i++) {
        put_blocks(&all[i], q->style.lang, &out);
        put_rules(&all[i], &q->style, &out);
    }
    return verb_print_buf(&out);
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
        all[i].url = q->urls->at[i];
    uint64_t begin = ek_now_us();
    if (read_all(all, count, false, said) < 0)
        goto out;
    bool twice = q->seconds > 0;
    struct timespec pause = {(time_t)q->seconds,
                             (long)((q->seconds - (double)(time_t)q->seconds) * 1e9)};
    if (twice) {
        (void)nanosleep(&pause, NULL); /* a signal makes it shorter: the time is measured */
        if (read_all(all, count, true, said) < 0)
            goto out;
    }
    double seconds = (double)(ek_now_us() - begin) * 1e-6;
    for (size_t i = 0; i < count; i++) {
        struct replica *r = &all[i];
        pages[i] = twice ? r->now : r->before;
        live_numbers(&pages[i], twice ? &r->before : NULL, seconds, r->max_model_len, &r->numbers);
    }
    for (size_t i = 0; i < count; i++)
        live_compare(pages, (uint32_t)count, &all[i].numbers);
    code = tell(q, all, count);
    said[0] = '\0';
out:
    if (said[0])
        code = refuse(said);
    free(all);
    free(pages);
    return code;
}
