/*
 * Reads and writes state.json, for loop.c and the servers; state_life.c has the part about a
 * server's life. Parsing takes every field within bounds and ignores names that it does not know;
 * an older file lacks some, and these are zero.
 */
#include "supervisor/io/state.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/fnv.h"
#include "supervisor/io/state_life.h"

#define STATE_VERSION 2
#define STATE_MOST    (1u << 20)

void state_free(struct state *s)
{
    free(s->at);
    *s = (struct state){0};
}

static struct state_server *state_find_own(const struct state *s, const char *name)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (strcmp(s->at[i].name, name) == 0)
            return &s->at[i];
    }
    return NULL;
}

const struct state_server *state_find(const struct state *s, const char *name)
{
    return state_find_own(s, name);
}

struct state_server *state_of(struct state *s, const char *name)
{
    struct state_server *one = state_find_own(s, name);
    if (one)
        return one;
    struct state_server *more = realloc(s->at, (s->count + 1) * sizeof(*more));
    if (!more)
        return NULL;
    s->at = more;
    one = &more[s->count++];
    *one = (struct state_server){0};
    (void)snprintf(one->name, sizeof(one->name), "%s", name);
    return one;
}

/* Reading */

static uint64_t time_in(const json_t *j)
{
    json_int_t v = json_integer_value(j);
    return v > 0 ? (uint64_t)v : 0;
}

static double real_in(const json_t *j, double most)
{
    double v = json_number_value(j);
    return v > 0 && v <= most ? v : 0;
}

static uint32_t count_in(const json_t *j)
{
    json_int_t v = json_integer_value(j);
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static void parse_remedy(const json_t *j, struct remedy_memory *m)
{
    const json_t *tried = json_object_get(j, "tried");
    m->caps = (struct remedy_settings){
        .tokens = count_in(json_object_get(j, "tokens")),
        .seqs = count_in(json_object_get(j, "seqs")),
        .share = real_in(json_object_get(j, "share"), 1),
        .swap_gib = real_in(json_object_get(j, "swap_gib"), 1e6),
        .no_swap = json_is_true(json_object_get(j, "no_swap")),
        .expandable = json_is_true(json_object_get(j, "expandable")),
    };
    m->until_us = time_in(json_object_get(j, "until_us"));
    for (int i = 0; i < CRASH_COUNT; i++) {
        const json_t *one = json_object_get(tried, crash_name((enum crash_class)i));
        m->tried[i].steps = (uint8_t)(count_in(json_object_get(one, "steps")) & 0xffu);
        m->tried[i].wall_us = time_in(json_object_get(one, "wall_us"));
    }
}

static void parse_planned(const json_t *j, struct planned_log *log)
{
    const json_t *list = json_object_get(j, "wall_us");
    size_t n = json_array_size(list);
    for (size_t i = n > PLANNED_KEPT ? n - PLANNED_KEPT : 0; i < n; i++)
        planned_note(log, time_in(json_array_get(list, i)));
    log->off_until_us = time_in(json_object_get(j, "off_until_us"));
}

/* Of a server: what would have to be escaped is in none. */
static bool state_is_name(const char *name)
{
    size_t n = strlen(name);
    bool plain = n > 0 && n < sizeof(((struct state_server *)0)->name);
    for (size_t i = 0; plain && i < n; i++)
        plain = (unsigned char)name[i] > ' ' && name[i] != '"' && name[i] != '\\';
    return plain;
}

static int parse_server(const char *name, const json_t *j, struct state *into)
{
    if (!json_is_object(j) || !state_is_name(name))
        return -EBADMSG;
    struct state_server *one = state_of(into, name);
    if (!one)
        return -ENOMEM;
    one->wall_us = time_in(json_object_get(j, "wall_us"));
    for (int k = 0; k < KNOB_COUNT; k++) {
        const json_t *l = json_object_get(j, knob_name((enum knob)k));
        one->value[k] = count_in(json_object_get(l, "value"));
        one->pinned[k] = json_is_true(json_object_get(l, "pinned"));
    }
    state_life_parse(j, one);
    parse_remedy(json_object_get(j, "remedy"), &one->remedy);
    parse_planned(json_object_get(j, "planned"), &one->planned);
    return 0;
}

/* The sum covers what is before it; files of version 1 have none. */
static bool sum_fits(const char *json, size_t len)
{
    static const char mark[] = ",\"sum\":\"";
    char want[32];
    const char *at = NULL, *next = json;
    while ((next = memmem(next, len - (size_t)(next - json), mark, sizeof(mark) - 1)))
        at = next++;
    if (!at)
        return false;
    (void)snprintf(want, sizeof(want), "%016llx\"}",
                   (unsigned long long)ek_fnv(EK_FNV_BEGIN, json, (size_t)(at - json)));
    const char *sum = at + sizeof(mark) - 1;
    return len - (size_t)(sum - json) >= strlen(want) && memcmp(sum, want, strlen(want)) == 0;
}

int state_parse(const char *json, size_t len, struct state *ret_state)
{
    struct state s = {0};
    int r = -EBADMSG;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *servers = json_object_get(root, "servers");
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (version < 1 || version > STATE_VERSION || !json_is_object(servers) ||
        (version > 1 && !sum_fits(json, len)))
        goto out;
    for (void *i = json_object_iter(servers); i; i = json_object_iter_next(servers, i)) {
        r = parse_server(json_object_iter_key(i), json_object_iter_value(i), &s);
        if (r < 0)
            goto out;
    }
    *ret_state = s;
    s = (struct state){0};
    r = 0;
out:
    state_free(&s);
    json_decref(root);
    return r;
}

int state_peek(const char *dir, struct state *ret_state)
{
    char path[512];
    struct ek_buf text = {0};
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    *ret_state = (struct state){0};
    int r = ek_file_read_regular(path, STATE_MOST, &text);
    if (r == -EFBIG || r == -EINVAL) /* not ours */
        r = -EBADMSG;
    if (r == 0)
        r = state_parse(text.data ? text.data : "", text.len, ret_state);
    ek_buf_done(&text);
    return r == -ENOENT ? 0 : r;
}

int state_load(const char *dir, struct state *ret_state)
{
    char path[512], aside[520];
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    (void)snprintf(aside, sizeof(aside), "%s.bad", path);
    int r = state_peek(dir, ret_state);
    if (r == 0)
        return 0;
    if (r == -EBADMSG)
        (void)rename(path, aside); /* kept for a look at it; the caller says it */
    ret_state->lost_us = ek_wall_us();
    return r;
}

/* The new name is on the disk when its directory is. */
static int sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = fsync(fd) < 0 && errno != EINVAL ? -errno : 0; /* some file systems cannot */
    close(fd);
    return r;
}

static void put_remedy(const struct remedy_memory *m, struct ek_buf *out)
{
    const struct remedy_settings *c = &m->caps;
    bool first = true;
    (void)ek_buf_printf(out,
                        ",\"remedy\":{\"until_us\":%llu,\"tokens\":%u,\"seqs\":%u,\"share\":%.4g,"
                        "\"swap_gib\":%.6g,\"no_swap\":%s,\"expandable\":%s,\"tried\":{",
                        (unsigned long long)m->until_us, c->tokens, c->seqs, c->share, c->swap_gib,
                        c->no_swap ? "true" : "false", c->expandable ? "true" : "false");
    for (int i = 0; i < CRASH_COUNT; i++) {
        if (!m->tried[i].steps)
            continue;
        (void)ek_buf_printf(out, "%s\"%s\":{\"steps\":%u,\"wall_us\":%llu}", first ? "" : ",",
                            crash_name((enum crash_class)i), m->tried[i].steps,
                            (unsigned long long)m->tried[i].wall_us);
        first = false;
    }
    (void)ek_buf_puts(out, "}}");
}

static void put_planned(const struct planned_log *log, struct ek_buf *out)
{
    (void)ek_buf_printf(out, ",\"planned\":{\"off_until_us\":%llu,\"wall_us\":[",
                        (unsigned long long)log->off_until_us);
    for (uint32_t i = 0; i < log->count; i++)
        (void)ek_buf_printf(out, "%s%llu", i ? "," : "", (unsigned long long)log->wall_us[i]);
    (void)ek_buf_puts(out, "]}");
}

static void put_server(const struct state_server *one, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "\"%s\":{\"wall_us\":%llu", one->name,
                        (unsigned long long)one->wall_us);
    for (int k = 0; k < KNOB_COUNT; k++)
        (void)ek_buf_printf(out, ",\"%s\":{\"value\":%u,\"pinned\":%s}", knob_name((enum knob)k),
                            one->value[k], one->pinned[k] ? "true" : "false");
    state_life_put(one, out);
    put_remedy(&one->remedy, out);
    put_planned(&one->planned, out);
    (void)ek_buf_puts(out, "}");
}

int state_save(const char *dir, struct state *s)
{
    char path[512];
    struct ek_buf out = {0};
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    (void)ek_buf_printf(&out, "{\"version\":%d,\"servers\":{", STATE_VERSION);
    for (uint32_t i = 0; i < s->count; i++) {
        if (i)
            (void)ek_buf_puts(&out, ",");
        put_server(&s->at[i], &out);
    }
    (void)ek_buf_puts(&out, "}");
    int r = -ENOMEM;
    if (ek_buf_ok(&out)) {
        (void)ek_buf_printf(&out, ",\"sum\":\"%016llx\"}\n",
                            (unsigned long long)ek_fnv(EK_FNV_BEGIN, out.data, out.len));
        r = ek_buf_ok(&out) ? ek_file_replace(path, out.data, out.len, 0600, EK_FILE_SYNC)
                            : -ENOMEM;
    }
    if (r == 0)
        r = sync_dir(dir);
    ek_buf_done(&out);
    s->unsaved = r < 0;
    return r;
}
