#include "supervisor/state.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"

#define STATE_VERSION 1
#define STATE_MOST    (1u << 20)

void state_free(struct state *s)
{
    free(s->at);
    *s = (struct state){0};
}

static struct state_server *find(const struct state *s, const char *name)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (strcmp(s->at[i].name, name) == 0)
            return &s->at[i];
    }
    return NULL;
}

struct state_server *state_of(struct state *s, const char *name)
{
    struct state_server *one = find(s, name);
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

static int parse_server(const char *name, const json_t *j, struct state *into)
{
    if (!json_is_object(j) || strlen(name) >= sizeof(((struct state_server *)0)->name))
        return -EBADMSG;
    struct state_server *one = state_of(into, name);
    if (!one)
        return -ENOMEM;
    json_int_t wall = json_integer_value(json_object_get(j, "wall_us"));
    one->wall_us = wall > 0 ? (uint64_t)wall : 0;
    for (int k = 0; k < KNOB_COUNT; k++) {
        const json_t *l = json_object_get(j, knob_name((enum knob)k));
        json_int_t v = json_integer_value(json_object_get(l, "value"));
        one->value[k] = v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
        one->pinned[k] = json_is_true(json_object_get(l, "pinned"));
    }
    return 0;
}

int state_parse(const char *json, size_t len, struct state *ret_state)
{
    struct state s = {0};
    int r = -EBADMSG;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    json_t *servers = json_object_get(root, "servers");
    if (json_integer_value(json_object_get(root, "version")) != STATE_VERSION ||
        !json_is_object(servers))
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

static int read_all(const char *path, struct ek_buf *out)
{
    char part[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    out->limit = STATE_MOST;
    ssize_t n;
    while ((n = read(fd, part, sizeof(part))) > 0)
        (void)ek_buf_add(out, part, (size_t)n); /* tested once below */
    int r = n < 0 ? -errno : ek_buf_ok(out) ? 0 : -EBADMSG;
    close(fd);
    return r;
}

int state_load(const char *dir, struct state *ret_state)
{
    char path[512], aside[520];
    struct ek_buf text = {0};
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    (void)snprintf(aside, sizeof(aside), "%s.bad", path);
    *ret_state = (struct state){0};
    int r = read_all(path, &text);
    if (r == 0)
        r = state_parse(text.data ? text.data : "", text.len, ret_state);
    ek_buf_done(&text);
    if (r == -ENOENT)
        return 0;
    if (r == -EBADMSG)
        (void)rename(path, aside); /* kept for whoever wants to know; the caller says it */
    return r;
}

static int write_whole(const char *path, const struct ek_buf *text)
{
    char tmp[520];
    (void)snprintf(tmp, sizeof(tmp), "%s.new", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text->data, text->len);
    int r = n < 0 ? -errno : (size_t)n != text->len ? -ENOSPC : 0;
    if (r == 0 && fdatasync(fd) < 0)
        r = -errno;
    if (close(fd) < 0 && r == 0)
        r = -errno;
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r < 0)
        (void)unlink(tmp); /* the old file stays */
    return r;
}

int state_save(const char *dir, const struct state *s)
{
    char path[512];
    struct ek_buf out = {0};
    (void)snprintf(path, sizeof(path), "%s/state.json", dir);
    (void)ek_buf_printf(&out, "{\"version\":%d,\"servers\":{", STATE_VERSION);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct state_server *one = &s->at[i];
        (void)ek_buf_printf(&out, "%s\"%s\":{\"wall_us\":%llu", i ? "," : "", one->name,
                            (unsigned long long)one->wall_us);
        for (int k = 0; k < KNOB_COUNT; k++)
            (void)ek_buf_printf(&out, ",\"%s\":{\"value\":%u,\"pinned\":%s}",
                                knob_name((enum knob)k), one->value[k],
                                one->pinned[k] ? "true" : "false");
        (void)ek_buf_puts(&out, "}");
    }
    (void)ek_buf_puts(&out, "}}\n");
    int r = ek_buf_ok(&out) ? write_whole(path, &out) : -ENOMEM;
    ek_buf_done(&out);
    return r;
}
