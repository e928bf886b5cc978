/* Reading a metrics page, see live.h: a table of names, sums over engines and models. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/promtext.h"
#include "supervisor/doctor/live.h"

enum how { ADD, MOST };

static const struct {
    const char *name; /* ':' and '_' are the same */
    size_t at;
    enum how how;
    const char *label, *value; /* only series with it; NULL: all */
} gauges[] = {
#define PAGE(field) offsetof(struct live_page, field)
    {"vllm:num_requests_running", PAGE(running), ADD, NULL, NULL},
    {"vllm:num_requests_waiting", PAGE(waiting), ADD, NULL, NULL},
    {"vllm:kv_cache_usage_perc", PAGE(usage), MOST, NULL, NULL},
    {"vllm:gpu_cache_usage_perc", PAGE(usage), MOST, NULL, NULL},
    {"vllm:num_preemptions_total", PAGE(preemptions), ADD, NULL, NULL},
    {"vllm:prompt_tokens_total", PAGE(prompt_tokens), ADD, NULL, NULL},
    {"vllm:generation_tokens_total", PAGE(output_tokens), ADD, NULL, NULL},
    {"vllm:prefix_cache_queries_total", PAGE(queries), ADD, NULL, NULL},
    {"vllm:prefix_cache_hits_total", PAGE(hits), ADD, NULL, NULL},
    /* The other spellings that the table of engines (law/dialect.c) has, and other engines. */
    {"vllm:num_preemptions", PAGE(preemptions), ADD, NULL, NULL},
    {"vllm:prompt_tokens", PAGE(prompt_tokens), ADD, NULL, NULL},
    {"vllm:generation_tokens", PAGE(output_tokens), ADD, NULL, NULL},
    {"vllm:prefix_cache_queries", PAGE(queries), ADD, NULL, NULL},
    {"vllm:prefix_cache_hits", PAGE(hits), ADD, NULL, NULL},
    {"vllm:gpu_prefix_cache_queries_total", PAGE(queries), ADD, NULL, NULL},
    {"vllm:gpu_prefix_cache_hits_total", PAGE(hits), ADD, NULL, NULL},
    {"vllm:gpu_prefix_cache_queries", PAGE(queries), ADD, NULL, NULL},
    {"vllm:gpu_prefix_cache_hits", PAGE(hits), ADD, NULL, NULL},
    {"sglang:num_running_reqs", PAGE(running), ADD, NULL, NULL},
    {"sglang:num_queue_reqs", PAGE(waiting), ADD, NULL, NULL},
    {"sglang:token_usage", PAGE(usage), MOST, NULL, NULL},
    {"sglang:prompt_tokens_total", PAGE(prompt_tokens), ADD, NULL, NULL},
    {"sglang:generation_tokens_total", PAGE(output_tokens), ADD, NULL, NULL},
    {"llamacpp:requests_processing", PAGE(running), ADD, NULL, NULL},
    {"llamacpp:requests_deferred", PAGE(waiting), ADD, NULL, NULL},
    {"llamacpp:kv_cache_usage_ratio", PAGE(usage), MOST, NULL, NULL},
    {"llamacpp:prompt_tokens_total", PAGE(prompt_tokens), ADD, NULL, NULL},
    {"llamacpp:tokens_predicted_total", PAGE(output_tokens), ADD, NULL, NULL},
    {"vllm:request_success_total", PAGE(bad), ADD, "finished_reason", "error"},
    {"vllm:request_success_total", PAGE(good), ADD, "finished_reason", "stop"},
    {"vllm:request_success_total", PAGE(good), ADD, "finished_reason", "length"},
    {"vllm:admission_rejections_total", PAGE(refused), ADD, NULL, NULL},
    {"evenkeel_kv_blocks", PAGE(cached_blocks), ADD, "state", "cached"},
    {"evenkeel_limit", PAGE(limit_seqs), MOST, "limit", "max_num_running_seqs"},
    {"evenkeel_limit", PAGE(limit_tokens), MOST, "limit", "max_num_batched_tokens"},
};
#define GAUGES (sizeof(gauges) / sizeof(gauges[0]))

static const char *const hists[LIVE_HISTS][3] = {
    [LIVE_TTFT] = {"vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds", NULL},
    [LIVE_ITL] = {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
                  "sglang:inter_token_latency_seconds"},
    [LIVE_QUEUE] = {"vllm:request_queue_time_seconds", NULL},
    [LIVE_PROMPT] = {"vllm:request_prompt_tokens", NULL},
    [LIVE_OUTPUT] = {"vllm:request_generation_tokens", NULL},
};

/* Length of the name if the sample's begins with it, 0 if not. */
static size_t begins(const char *name, const char *with)
{
    size_t i = 0;
    for (; with[i]; i++) {
        char c = name[i] == '_' && with[i] == ':' ? ':' : name[i];
        if (c != with[i])
            return 0;
    }
    return i;
}

static bool same(const char *name, const char *with)
{
    size_t n = begins(name, with);
    return n > 0 && name[n] == '\0';
}

static void add_bucket(struct live_hist *h, const struct promtext_sample *s)
{
    const char *le = promtext_label(s, "le");
    double bound;
    uint32_t i = 0;
    if (!le || promtext_number(le, strlen(le), &bound) == 0)
        return;
    while (i < h->buckets && h->bound[i] < bound)
        i++;
    if (i < h->buckets && !(h->bound[i] > bound)) {
        h->hits[i] += s->value; /* another engine's */
        return;
    }
    if (h->buckets == LIVE_BUCKETS)
        return;
    memmove(h->bound + i + 1, h->bound + i, (h->buckets - i) * sizeof(double));
    memmove(h->hits + i + 1, h->hits + i, (h->buckets - i) * sizeof(double));
    h->bound[i] = bound;
    h->hits[i] = s->value;
    h->buckets++;
}

static bool take_hist(struct live_page *p, const struct promtext_sample *s)
{
    for (int h = 0; h < LIVE_HISTS; h++) {
        for (int k = 0; k < 3 && hists[h][k]; k++) {
            size_t n = begins(s->name, hists[h][k]);
            if (n == 0)
                continue;
            if (strcmp(s->name + n, "_bucket") == 0)
                add_bucket(&p->hist[h], s);
            else if (strcmp(s->name + n, "_sum") == 0)
                p->hist[h].sum += s->value;
            else if (strcmp(s->name + n, "_count") == 0)
                p->hist[h].count += s->value;
            else
                continue;
            return true;
        }
    }
    return false;
}

static double label_number(const struct promtext_sample *s, const char *label)
{
    const char *text = promtext_label(s, label);
    double v;
    return text && promtext_number(text, strlen(text), &v) > 0 && isfinite(v) ? v : -1;
}

static void take_config(struct live_page *p, const struct promtext_sample *s)
{
    const char *caching = promtext_label(s, "enable_prefix_caching");
    double blocks = label_number(s, "num_gpu_blocks");
    p->block_size = label_number(s, "block_size");
    p->share = label_number(s, "gpu_memory_utilization");
    if (blocks >= 0)
        p->blocks = p->blocks < 0 ? blocks : p->blocks + blocks;
    p->prefix_caching_off =
        caching && (strcmp(caching, "False") == 0 || strcmp(caching, "false") == 0);
}

/* What is read, and of which engine; NULL = of all. */
struct reading {
    struct live_page *page;
    const struct live_part *part;
};

static bool belongs(const struct live_part *part, const struct promtext_sample *s)
{
    const char *engine = part ? promtext_label(s, "engine") : NULL;
    const char *model = part ? promtext_label(s, "model_name") : NULL;
    return (!engine || strncmp(engine, part->engine, sizeof(part->engine) - 1) == 0) &&
           (!model || strncmp(model, part->model, sizeof(part->model) - 1) == 0);
}

static void take(void *ctx, const struct promtext_sample *s)
{
    const struct reading *r = ctx;
    struct live_page *p = r->page;
    if (!isfinite(s->value) || !belongs(r->part, s))
        return;
    if (same(s->name, "vllm:cache_config_info")) {
        take_config(p, s);
        p->samples++;
        return;
    }
    for (size_t i = 0; i < GAUGES; i++) {
        if (!same(s->name, gauges[i].name))
            continue;
        const char *label = gauges[i].label ? promtext_label(s, gauges[i].label) : NULL;
        if (gauges[i].label && (!label || strcmp(label, gauges[i].value) != 0))
            continue;
        double *to = (double *)(void *)((char *)p + gauges[i].at);
        if (gauges[i].how == ADD)
            *to = *to < 0 ? s->value : *to + s->value;
        else if (s->value > *to)
            *to = s->value;
        p->samples++;
        return;
    }
    p->samples += take_hist(p, s);
}

struct finding {
    struct live_part *parts;
    uint32_t count, most;
};

static void note_part(void *ctx, const struct promtext_sample *s)
{
    struct finding *f = ctx;
    const char *engine = promtext_label(s, "engine"), *model = promtext_label(s, "model_name");
    if (f->count == f->most || !same(s->name, "vllm:num_requests_running"))
        return;
    struct live_part *p = &f->parts[f->count];
    (void)snprintf(p->engine, sizeof(p->engine), "%s", engine ? engine : "");
    (void)snprintf(p->model, sizeof(p->model), "%s", model ? model : "");
    for (uint32_t i = 0; i < f->count; i++) {
        if (strcmp(f->parts[i].engine, p->engine) == 0 && strcmp(f->parts[i].model, p->model) == 0)
            return;
    }
    f->count++;
}

uint32_t live_parts(const char *page, size_t len, struct live_part *ret_parts, uint32_t most)
{
    struct promtext_info info;
    struct finding f = {.parts = ret_parts, .most = most};
    promtext_parse(page, len, note_part, &f, &info);
    return f.count;
}

void live_read(const char *page, size_t len, struct live_page *ret_page)
{
    live_read_part(page, len, NULL, ret_page);
}

void live_read_part(const char *page, size_t len, const struct live_part *part,
                    struct live_page *ret_page)
{
    struct promtext_info info;
    struct live_page p = {.running = -1,
                          .waiting = -1,
                          .usage = -1,
                          .blocks = -1,
                          .block_size = -1,
                          .cached_blocks = -1,
                          .preemptions = -1,
                          .prompt_tokens = -1,
                          .output_tokens = -1,
                          .queries = -1,
                          .hits = -1,
                          .good = -1,
                          .bad = -1,
                          .refused = -1,
                          .limit_seqs = -1,
                          .limit_tokens = -1,
                          .share = -1};
    struct reading reading = {&p, part};
    promtext_parse(page, len, take, &reading, &info);
    *ret_page = p;
}

double live_quantile(const struct live_hist *now, const struct live_hist *before, double q)
{
    bool matches = before && before->buckets == now->buckets;
    double all = 0, below = 0, low = 0;
    if (now->buckets == 0)
        return -1;
    all = now->hits[now->buckets - 1] - (matches ? before->hits[now->buckets - 1] : 0);
    if (!(all > 0))
        return -1;
    for (uint32_t i = 0; i < now->buckets; i++) {
        double hits = now->hits[i] - (matches ? before->hits[i] : 0);
        if (hits >= q * all) {
            if (!isfinite(now->bound[i]))
                return low;
            double in = hits - below;
            return low + (now->bound[i] - low) * (in > 0 ? (q * all - below) / in : 1);
        }
        below = hits;
        low = now->bound[i];
    }
    return low;
}
