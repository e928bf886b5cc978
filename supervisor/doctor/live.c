/*
 * The rules, see live.h. A rule is a row: what must be known, when it applies, and the words; the
 * first ten are those that operators know from vllm-doctor, with values in place of hints.
 */
#include "supervisor/doctor/live.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/doctor/expr.h"

static const struct {
    const char *id, *when, *flag, *value;
    struct doctor_text title, text, remedy;
} rules[] = {
    {"no-progress",
     "((running ?? 0) > 0 or (waiting ?? 0) > 0) and output_s <= 0 and prompt_s <= 0",
     NULL,
     NULL,
     {{"Work is there and no token comes", "有请求却没有产出"}},
     {{"{running} run and {waiting} wait, and between two readings not one token was read or made: "
       "the engine stands still, whatever /health says.",
       "{running} 个运行、{waiting} 个等待，但两次读数之间没有任何 token 产出：引擎已停滞，与 "
       "/health "
       "无关。"}},
     {{"Read again after a minute; if it stays so save the stacks (py-spy dump, /proc/PID/stack) "
       "and "
       "restart. evenkeeld confirms it with a request of its own and does so.",
       "一分钟后再看；若仍如此，保存调用栈(py-spy dump、/proc/PID/stack)后重启。evenkeeld "
       "会用自己的请求确认并处理。"}}},
    {"queue-pressure",
     "waiting > 3 * max(running, 1)",
     "--max-num-queued-reqs",
     "max(up(running * 2, 1), 1)",
     {{"Queue pressure", "排队压力"}},
     {{"{waiting} wait and {running} run; the cache would hold {floor(room_requests)} more.",
       "{waiting} 个等待，{running} 个运行；缓存还能容纳 {floor(room_requests)} 个。"}},
     {{"Bound the queue so that those who wait are told in time (evenkeel-server; before a vLLM a "
       "proxy does it), and add replicas. Whether more sequences would help says the rule of idle "
       "capacity.",
       "限制队列长度，以便及时告知等待者（evenkeel-server；vLLM 则由代理完成），并增加副本。"
       "提高并发是否有用，见“容量闲置”一条。"}}},
    {"queue-latency",
     "queue_p95 > 1",
     "--max-num-queued-reqs",
     "max(up(running * 2, 1), 1)",
     {{"Queue latency", "排队时延"}},
     {{"95 % wait less than {queue_p95} s in the queue.", "95% 的请求排队少于 {queue_p95} 秒。"}},
     {{"A queue deadline keeps the others in time: under overload 54 to 67 % instead of 3 to 7 %.",
       "设置队列期限可保证其他请求的时延：过载时从 3%–7% 提升到 54%–67%。"}}},
    {"ttft",
     "ttft_p95 * ((waiting ?? 0) <= (running ?? 1)) * ((queue_p95 ?? 0) < ttft_p95 / 2) > 2",
     "--max-num-batched-tokens",
     "min(up((tokens_limit ?? 4096) * 2, 16), 16384)",
     {{"First token is late", "首 token 偏慢"}},
     {{"First token: median {ttft_p50} s, 95 % below {ttft_p95} s; prompts have {prompt_mean} "
       "tokens.",
       "首 token：中位数 {ttft_p50} 秒，95% 低于 {ttft_p95} 秒；提示词平均 {prompt_mean} token。"}},
     {{"It is not the queue: a larger token budget reads prompts in fewer steps (it lengthens the "
       "gaps of others); "
       "prefix "
       "caching helps where prompts begin alike.",
       "原因不在排队：更大的 token "
       "预算可减少预填充步数（会拉长其他请求的间隔）；前缀相同时启用前缀缓存。"}}},
    {"tpot",
     "itl_p95 > 0.2",
     "--max-num-batched-tokens",
     "max(down((tokens_limit ?? 8192) * 0.75, 16), 512)",
     {{"Tokens come slowly", "token 间隔偏大"}},
     {{"Between tokens: median {itl_p50} s, 95 % below {itl_p95} s with {running} running.",
       "token 间隔：中位数 {itl_p50} 秒，95% 低于 {itl_p95} 秒，{running} 个运行。"}},
     {{"A smaller token budget keeps long prefills from holding up the others; then fewer "
       "sequences.",
       "减小 token 预算，避免长预填充拖慢其他请求；再考虑降低并发。"}}},
    {"kv-pressure",
     "usage > 0.9 and (waiting > 0 or preemptions_s > 0)",
     "--max-num-seqs",
     "max(floor(running * 0.8), 1)",
     {{"KV cache pressure", "KV 缓存压力"}},
     {{"{usage:pct} of the KV cache are in use and {waiting} wait. A full cache alone is an "
       "efficient "
       "cache: it is pressure because somebody suffers.",
       "KV 缓存使用率 {usage:pct},{waiting} 个等待。仅仅缓存满并不是问题，有请求受影响才是压力。"}},
     {{"Fewer sequences (0.8 of those that run), or a larger share, or an FP8 cache.",
       "降低并发（当前运行数的 0.8），或提高显存占比，或使用 FP8 KV 缓存。"}}},
    {"preemption",
     "preemptions_s > 0",
     "--max-num-seqs",
     "max(floor(running * 0.8), 1)",
     {{"Preemptions", "抢占"}},
     {{"{preemptions_s} a second: work is thrown away and computed again.",
       "每秒 {preemptions_s} 次：计算结果被丢弃并重算。"}},
     {{"Fewer sequences; evenkeeld lowers them live and takes back what did not help.",
       "降低并发；evenkeeld 会在线调整并撤销无效的改动。"}}},
    {"prefix-cache",
     "queries > 10000 and hit_rate < 0.3",
     "--no-enable-prefix-caching",
     NULL,
     {{"The prefix cache gives little", "前缀缓存收益低"}},
     {{"{hit_rate:pct} of the tokens looked up were found; below 30 % it is hardly worth its work.",
       "查找的 token 命中率为 {hit_rate:pct}；低于 30% 时几乎不值得。"}},
     {{"Switch it off, or cap its share; first look whether prompts could begin alike (the system "
       "prompt first, the time last).",
       "可关闭或限制其占比；先检查提示词能否以相同内容开头（系统提示词在前，时间在后）。"}}},
    {"low-throughput",
     "waiting > 0 and running > 0 and usage < 0.5 and room_requests >= 1",
     "--max-num-seqs",
     "down(min(running + room_requests * 0.85, running * 4), 1)",
     {{"Capacity lies idle while requests wait", "请求在等待而容量闲置"}},
     {{"{waiting} wait though only {usage:pct} of the cache are used: the limit of sequences "
       "binds, not "
       "memory; {output_s} tokens a second.",
       "缓存只用了 {usage:pct} 却有 {waiting} 个等待：受限于并发上限而非内存；每秒 {output_s} "
       "token。"}},
     {{"Raise the sequences; live on evenkeel-server, by restart on vLLM.",
       "提高并发上限；evenkeel-server 可在线修改，vLLM 需重启。"}}},
    {"errors",
     "error_rate > 0.01",
     NULL,
     NULL,
     {{"Requests fail", "请求失败"}},
     {{"{error_rate:pct} of the requests ended with an error or were refused.",
       "{error_rate:pct} 的请求出错或被拒绝。"}},
     {{"Read the log: evenkeelctl diagnose LOG.", "查看日志：evenkeelctl diagnose LOG。"}}},
    {"imbalance",
     "imbalance > 0.5",
     NULL,
     NULL,
     {{"A replica is out of line", "副本不均衡"}},
     {{"Replica {imbalance_replica}: {imbalance_value} where the median of the others is "
       "{imbalance_median}.",
       "副本 {imbalance_replica}:{imbalance_value}，其他副本的中位数为 {imbalance_median}。"}},
     {{"Compare its limits and its card; let the router count running requests, not connections.",
       "比较其限额与显卡；让路由按运行请求数而非连接数分配。"}}},
    {"max-model-len",
     "len_p95 * 2 < max_model_len and len_count >= 100",
     "--max-model-len",
     "up(len_p99 * 1.2, 256)",
     {{"Requests are much shorter than allowed", "请求远短于允许长度"}},
     {{"95 % of {len_count} requests are under {ceil(len_p95)} tokens, 99 % under {ceil(len_p99)}; "
       "allowed are "
       "{max_model_len}.",
       "{len_count} 个请求中 95% 少于 {ceil(len_p95)} token,99% 少于 {ceil(len_p99)}；允许 "
       "{max_model_len}。"}},
     {{"A paged cache reserves nothing for the rest, so lowering it frees no memory; it only stops "
       "single "
       "requests that would fill the cache.",
       "分页缓存不会为未用长度预留，降低它不会释放显存，只是挡住会占满缓存的个别请求。"}}},
    {"block-size",
     "block_size > 8 and len_mean > 0 and block_size / 2 / len_mean > 0.1",
     "--block-size",
     "8",
     {{"Blocks are large for these requests", "块相对请求偏大"}},
     {{"Half of the last block of {block_size} tokens is empty on average: {block_size / 2 / "
       "len_mean:pct} of "
       "requests of {len_mean} tokens.",
       "平均每个请求最后一块({block_size} token)空一半：对长度 {len_mean} 的请求为 "
       "{block_size / 2 / len_mean:pct}。"}},
     {{"Blocks of 8 tokens waste less; 16 is balanced, 32 is for uniform long requests.",
       "8 token 的块浪费更少；16 较均衡，32 适合长度一致的长请求。"}}},
};
#define RULES (sizeof(rules) / sizeof(rules[0]))
_Static_assert(RULES <= LIVE_RULES, "the caller's array");

static void set(struct doctor_numbers *n, const char *name, double v)
{
    if (v >= 0)
        doctor_numbers_set(n, name, v, false);
}

static void blocks(const struct live_page *p, struct doctor_numbers *n)
{
    set(n, "running", p->running);
    set(n, "waiting", p->waiting);
    set(n, "usage", p->usage);
    set(n, "block_size", p->block_size);
    set(n, "cached_blocks", p->cached_blocks);
    set(n, "seqs_limit", p->limit_seqs);
    set(n, "tokens_limit", p->limit_tokens);
    if (p->blocks < 2 || p->usage < 0)
        return;
    double total = p->blocks - 1, used = round(p->usage * total); /* block 0 is never given out */
    set(n, "total_blocks", total);
    set(n, "used_blocks", used);
    set(n, "free_blocks", total - used);
    if (p->running > 0 && used > 0) {
        set(n, "blocks_per_request", used / p->running);
        set(n, "room_requests", (total - used) / (used / p->running));
    }
}

/* Growth a second; -1 when it is not known or the counter began anew. */
static double rate(double now, double before, double seconds)
{
    return now >= 0 && before >= 0 && now >= before && seconds > 0 ? (now - before) / seconds : -1;
}

static void rates(const struct live_page *p, const struct live_page *b, double seconds,
                  struct doctor_numbers *n)
{
    set(n, "preemptions_s", rate(p->preemptions, b->preemptions, seconds));
    set(n, "prompt_s", rate(p->prompt_tokens, b->prompt_tokens, seconds));
    set(n, "output_s", rate(p->output_tokens, b->output_tokens, seconds));
}

static void latency(const struct live_page *p, const struct live_page *b, enum live_histogram h,
                    const char *name, struct doctor_numbers *n)
{
    char text[DOCTOR_NAME_MOST];
    const struct live_hist *before = b ? &b->hist[h] : NULL;
    /* Nobody finished in between: what is known since the server began. */
    if (live_quantile(&p->hist[h], before, 0.5) < 0)
        before = NULL;
    (void)snprintf(text, sizeof(text), "%s_p50", name);
    set(n, text, live_quantile(&p->hist[h], before, 0.5));
    (void)snprintf(text, sizeof(text), "%s_p95", name);
    set(n, text, live_quantile(&p->hist[h], before, 0.95));
}

/* Prompt and answer are counted apart: the sum of both quantiles is an upper bound. */
static void lengths(const struct live_page *p, double max_model_len, struct doctor_numbers *n)
{
    const struct live_hist *in = &p->hist[LIVE_PROMPT], *out = &p->hist[LIVE_OUTPUT];
    set(n, "max_model_len", max_model_len > 0 ? max_model_len : -1);
    if (in->count <= 0)
        return;
    double mean = in->sum / in->count;
    set(n, "prompt_mean", round(mean));
    set(n, "len_count", in->count);
    if (out->count <= 0)
        return;
    set(n, "output_mean", round(out->sum / out->count));
    set(n, "len_mean", round(mean + out->sum / out->count));
    set(n, "len_p95", live_quantile(in, NULL, 0.95) + live_quantile(out, NULL, 0.95));
    set(n, "len_p99", live_quantile(in, NULL, 0.99) + live_quantile(out, NULL, 0.99));
}

void live_numbers(const struct live_page *now, const struct live_page *before, double seconds,
                  double max_model_len, struct doctor_numbers *n)
{
    n->count = 0;
    blocks(now, n);
    if (before)
        rates(now, before, seconds, n);
    latency(now, before, LIVE_TTFT, "ttft", n);
    latency(now, before, LIVE_ITL, "itl", n);
    latency(now, before, LIVE_QUEUE, "queue", n);
    lengths(now, max_model_len, n);
    set(n, "queries", now->queries);
    if (now->queries > 0 && now->hits >= 0)
        set(n, "hit_rate", now->hits / now->queries);
    double bad = fmax(now->bad, 0) + fmax(now->refused, 0);
    if (now->good >= 0 && now->good + bad > 0)
        set(n, "error_rate", bad / (now->good + bad));
}

uint32_t live_judge(const struct doctor_numbers *n, struct live_finding ret_findings[LIVE_RULES])
{
    for (size_t i = 0; i < RULES; i++) {
        struct live_finding *f = &ret_findings[i];
        double v = 0;
        int r = doctor_eval(rules[i].when, doctor_numbers_lookup, n, &v);
        *f = (struct live_finding){.id = rules[i].id,
                                   .state = r < 0    ? LIVE_UNKNOWN
                                            : v != 0 ? LIVE_APPLIES
                                                     : LIVE_FINE,
                                   .title = &rules[i].title,
                                   .text = &rules[i].text,
                                   .remedy = &rules[i].remedy,
                                   .flag = rules[i].flag};
        if (f->state == LIVE_APPLIES && rules[i].value &&
            doctor_eval(rules[i].value, doctor_numbers_lookup, n, &v) == 0) {
            v = round(v);
            (void)snprintf(f->value, sizeof(f->value), "%.0f", v < 0 || v > 0 ? v : 0); /* no -0 */
            f->has_value = true;
        }
    }
    return RULES;
}

static double measure(const struct live_page *p, int what)
{
    switch (what) {
    case 0: return p->running;
    case 1: return p->usage;
    case 2: return live_quantile(&p->hist[LIVE_TTFT], NULL, 0.5);
    default: return live_quantile(&p->hist[LIVE_ITL], NULL, 0.5);
    }
}

/* The median of the others' values. */
static double median_but(const struct live_page *pages, uint32_t count, uint32_t but, int what)
{
    double sorted[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && n < 64; i++) {
        double v = i == but ? -1 : measure(&pages[i], what);
        if (v < 0)
            continue;
        uint32_t k = n++;
        for (; k > 0 && sorted[k - 1] > v; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = v;
    }
    return n == 0 ? -1 : n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void live_compare(const struct live_page *pages, uint32_t count, struct doctor_numbers *n)
{
    static const double least[] = {4, 0.2, 0.2, 0.02}; /* smaller differences do not matter */
    double worst = -1;
    for (uint32_t i = 0; count > 1 && i < count; i++) {
        for (int what = 0; what < 4; what++) {
            double v = measure(&pages[i], what), m = median_but(pages, count, i, what);
            if (v < 0 || m < 0)
                continue;
            double off = fabs(v - m) < least[what] ? 0 : fabs(v - m) / fmax(fmax(v, m), 1e-9);
            if (off <= worst)
                continue;
            worst = off;
            set(n, "imbalance", off);
            set(n, "imbalance_replica", i + 1);
            set(n, "imbalance_what", what);
            set(n, "imbalance_value", v);
            set(n, "imbalance_median", m);
        }
    }
}
