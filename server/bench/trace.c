/*
 * Reads trace files for load.c and the benchmark of the scheduler (tests/bench/bench_sched.c),
 * through zlib, which also reads plain files. Lines are parsed by hand, because a trace has up to
 * hundreds of thousands of them. At the end arrivals are made relative to the first, and those that
 * go back are set to the one before.
 */
#include "server/bench/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#define LINE_MOST       65536u
#define MOONCAKE_TOKENS 512u

enum trace_form { FORM_NONE, FORM_AZURE, FORM_MOONCAKE, FORM_VIDUR };

static enum trace_form form_of(const char *line)
{
    if (strncmp(line, "TIMESTAMP,ContextTokens,GeneratedTokens", 39) == 0)
        return FORM_AZURE;
    if (strncmp(line, "num_prefill_tokens,num_decode_tokens", 36) == 0)
        return FORM_VIDUR;
    if (line[0] == '{' && strstr(line, "\"input_length\"") && strstr(line, "\"hash_ids\""))
        return FORM_MOONCAKE;
    return FORM_NONE;
}

/* The number after `key` and a colon or comma. */
static bool number_after(const char *line, const char *key, double *ret_value)
{
    const char *at = strstr(line, key);
    char *end;

    if (!at)
        return false;
    at += strlen(key);
    at += strspn(at, "\": ");
    *ret_value = strtod(at, &end);
    return end != at && *ret_value >= 0 && *ret_value < 1e12;
}

static int azure_line(const char *line, struct trace_request *r)
{
    struct tm tm = {0};
    const char *rest = strptime(line, "%Y-%m-%d %H:%M:%S", &tm);
    char *end;

    if (!rest)
        return -EBADMSG;
    double fraction = strtod(rest, &end);
    unsigned prompt, output;
    if (sscanf(end, ",%u,%u", &prompt, &output) != 2)
        return -EBADMSG;
    r->at_s = (double)timegm(&tm) + fraction;
    r->prompt = prompt;
    r->output = output;
    return 0;
}

static int vidur_line(const char *line, struct trace_request *r)
{
    return sscanf(line, "%u,%u", &r->prompt, &r->output) == 2 ? 0 : -EBADMSG;
}

static int add_hash(struct trace *t, uint32_t id, uint32_t *room)
{
    if (t->hash_count == *room) {
        uint32_t more = *room ? *room * 2 : 4096;
        uint32_t *hash = realloc(t->hash, more * sizeof(*hash));
        if (!hash)
            return -ENOMEM;
        t->hash = hash;
        *room = more;
    }
    t->hash[t->hash_count++] = id;
    return 0;
}

static int mooncake_line(struct trace *t, const char *line, struct trace_request *r, uint32_t *room)
{
    double at, prompt, output;
    const char *ids = strstr(line, "\"hash_ids\"");
    char *end;

    if (!ids || !(ids = strchr(ids, '[')) || !number_after(line, "\"timestamp\"", &at) ||
        !number_after(line, "\"input_length\"", &prompt) ||
        !number_after(line, "\"output_length\"", &output))
        return -EBADMSG;
    *r = (struct trace_request){.at_s = at / 1000,
                                .prompt = (uint32_t)prompt,
                                .output = (uint32_t)output,
                                .hash_at = t->hash_count};
    for (ids++; *ids != ']' && *ids != '\0'; ids = end + strspn(end, ", ")) {
        unsigned long id = strtoul(ids, &end, 10);
        if (end == ids || id > UINT32_MAX)
            return -EBADMSG;
        int code = add_hash(t, (uint32_t)id, room);
        if (code != 0)
            return code;
    }
    r->hashes = t->hash_count - r->hash_at;
    return 0;
}

static int read_lines(struct trace *t, gzFile f, char *line, uint32_t most)
{
    uint32_t room = 0;
    enum trace_form form = gzgets(f, line, LINE_MOST) ? form_of(line) : FORM_NONE;
    const char *next = form == FORM_MOONCAKE ? line : gzgets(f, line, LINE_MOST);

    if (form == FORM_NONE)
        return -ENOTSUP;
    t->timed = form != FORM_VIDUR;
    t->hash_tokens = form == FORM_MOONCAKE ? MOONCAKE_TOKENS : 0;
    for (; next && t->count < most; next = gzgets(f, line, LINE_MOST)) {
        struct trace_request r = {0};
        int code = form == FORM_AZURE      ? azure_line(line, &r)
                   : form == FORM_MOONCAKE ? mooncake_line(t, line, &r, &room)
                                           : vidur_line(line, &r);
        if (code != 0)
            return code;
        t->request[t->count++] = r;
    }
    double first = t->count > 0 ? t->request[0].at_s : 0;
    for (uint32_t i = 0; i < t->count; i++) {
        t->request[i].at_s -= first;
        if (i > 0 && t->request[i].at_s < t->request[i - 1].at_s)
            t->request[i].at_s = t->request[i - 1].at_s;
    }
    return t->count > 0 ? 0 : -ENOTSUP;
}

int trace_read(const char *path, uint32_t most, struct trace *ret_trace)
{
    struct trace t = {0};
    const char *base = strrchr(path, '/');
    int r = -ENOMEM;

    base = base ? base + 1 : path;
    snprintf(t.name, sizeof(t.name), "%.*s", (int)strcspn(base, "."), base);
    gzFile f = gzopen(path, "rbe");
    if (!f)
        return -EIO;
    char *line = malloc(LINE_MOST);
    t.request = calloc(most, sizeof(*t.request));
    if (line && t.request)
        r = read_lines(&t, f, line, most);
    free(line);
    (void)gzclose(f); /* only read */
    if (r != 0) {
        trace_done(&t);
        return r;
    }
    *ret_trace = t;
    return 0;
}

void trace_done(struct trace *t)
{
    free(t->request);
    free(t->hash);
    *t = (struct trace){0};
}
