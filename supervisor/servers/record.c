/*
 * Writing recordings, and their head lines both ways. The policy's constants go through the option
 * table, so that a new one is in recordings without a word here.
 */
#include "supervisor/servers/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/config/options_table.h"

#define VERSION 1

struct record {
    FILE *file;
    uint64_t bytes, most_bytes;
    uint64_t ready_us;
    struct ek_buf head, last; /* the line that would be written now, and the one that was */
};

int record_open(const char *path, uint64_t most_bytes, struct record **ret_record)
{
    struct record *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    int result = -ENOMEM;
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
    if (fd < 0 || fstat(fd, &st) < 0) {
        result = -errno;
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        result = -EINVAL; /* a pipe could hold up the loop */
        goto out;
    }
    r->bytes = (uint64_t)st.st_size;
    r->most_bytes = most_bytes;
    r->file = fdopen(fd, "a");
    if (!r->file)
        goto out;
    fd = -1;
    *ret_record = r;
    r = NULL;
    result = 0;
out:
    if (fd >= 0)
        close(fd);
    record_close(r);
    return result;
}

void record_close(struct record *r)
{
    if (!r)
        return;
    if (r->file)
        (void)fclose(r->file); /* each poll was flushed and its failure told */
    ek_buf_done(&r->head);
    ek_buf_done(&r->last);
    free(r);
}

void record_ready(struct record *r, uint64_t at_us)
{
    r->ready_us = at_us;
}

int record_write(FILE *out, uint64_t at_us, const char *page, size_t len)
{
    if (!page)
        len = 0;
    if (fprintf(out, "@%" PRIu64 " %zu\n", at_us, len) < 0)
        return -EIO;
    return len && fwrite(page, 1, len, out) != len ? -EIO : 0;
}

/* Head lines */

static const struct {
    const char *name;
    size_t at;
} bounds[] = {
    {"seqs_min", offsetof(struct policy_params, seqs_min)},
    {"seqs_max", offsetof(struct policy_params, seqs_max)},
    {"tokens_min", offsetof(struct policy_params, tokens_min)},
    {"tokens_max", offsetof(struct policy_params, tokens_max)},
};

static uint32_t *bound_at(struct policy_params *p, size_t i)
{
    return (uint32_t *)(void *)((char *)p + bounds[i].at);
}

static int record_head_write(const struct record_head *head, struct ek_buf *out)
{
    struct policy_params params = head->params;
    (void)ek_buf_printf(out, "# {\"version\":%d,\"engine\":\"%s\",\"server\":\"%s\",\"policy\":{",
                        VERSION, head->engine, head->server);
    config_policy_json(&params, out);
    (void)ek_buf_puts(out, "},\"limits\":{");
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        (void)ek_buf_printf(out, "%s\"%s\":%u", i ? "," : "", bounds[i].name,
                            *bound_at(&params, i));
    for (int k = 0; k < KNOB_COUNT; k++)
        (void)ek_buf_printf(out, ",\"%s\":{\"value\":%u,\"pinned\":%s}", knob_name((enum knob)k),
                            head->limit[k], head->pinned[k] ? "true" : "false");
    (void)ek_buf_printf(out,
                        ",\"queue_start_s\":%.17g,\"reserve_start\":%.17g,"
                        "\"queue_outside\":%s}",
                        params.queue_start_s, params.reserve_start,
                        params.queue_outside ? "true" : "false");
    if (head->write_failed)
        (void)ek_buf_puts(out, ",\"write_failed\":true");
    if (head->fresh)
        (void)ek_buf_puts(out, ",\"fresh\":true");
    if (head->ready_us)
        (void)ek_buf_printf(out, ",\"ready_us\":%llu", (unsigned long long)head->ready_us);
    (void)ek_buf_puts(out, "}\n");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int record_poll(struct record *r, const struct record_head *head, uint64_t at_us, const char *page,
                size_t len)
{
    ek_buf_clear(&r->head);
    int result = record_head_write(head, &r->head);
    if (result < 0)
        return result;
    bool differs = r->ready_us || !r->last.data || strcmp(r->head.data, r->last.data) != 0;
    if (r->bytes + (differs ? r->head.len + 64 : 0) + len + 64 > r->most_bytes)
        return -EFBIG;
    if (differs) {
        struct record_head now = *head;
        struct ek_buf line = {0};
        now.ready_us = r->ready_us;
        now.fresh = !r->last.data;
        result = record_head_write(&now, &line);
        if (result == 0 && fwrite(line.data, 1, line.len, r->file) != line.len)
            result = -EIO;
        r->bytes += line.len;
        ek_buf_done(&line);
        if (result < 0)
            return result;
        struct ek_buf swap = r->last;
        r->last = r->head;
        r->head = swap;
        r->ready_us = 0;
    }
    result = record_write(r->file, at_us, page, len);
    if (result < 0 || fflush(r->file) != 0)
        return result < 0 ? result : -errno;
    r->bytes += len + 32; /* the line before it, at most */
    return 0;
}

static int copy_text(const json_t *root, const char *name, char **ret_text)
{
    const char *text = json_string_value(json_object_get(root, name));
    if (!text || strlen(text) > 64)
        return -EBADMSG;
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    free(*ret_text);
    *ret_text = copy;
    return 0;
}

static uint32_t u32(const json_t *j)
{
    json_int_t v = json_integer_value(j);
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static int parse_policy(json_t *policy, struct server_config *server, char *ret_what, size_t size)
{
    const char *key;
    json_t *v;
    struct ek_fault fault = {0};
    struct ek_opt_source src = {.table = server_table, .into = server};
    json_object_foreach(policy, key, v)
    {
        const char *text = json_string_value(v);
        int r = text ? ek_opt_set(&src, key, text, &fault) : -EBADMSG;
        if (r == -EBADMSG)
            (void)snprintf(ret_what, size, "policy: %.40s: %.150s", key,
                           text ? fault.msg : "no text");
        if (r < 0)
            return r;
    }
    config_policy_finish(server);
    return 0;
}

int record_head_parse(const char *json, size_t len, struct server_config *server,
                      struct record_head *ret_head, char *ret_what, size_t what_size)
{
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *limits = json_object_get(root, "limits");
    const char *what = "no line of a recording";
    int r = -EBADMSG;
    ret_what[0] = '\0';
    if (!json_is_object(root) || !json_is_object(limits))
        goto out;
    what = "version: another than 1; use the evenkeeld that recorded it";
    if (json_integer_value(json_object_get(root, "version")) != VERSION)
        goto out;
    what = "engine and server must be names";
    r = copy_text(root, "engine", &server->engine);
    if (r == 0)
        r = copy_text(root, "server", &server->name);
    if (r == 0)
        r = parse_policy(json_object_get(root, "policy"), server, ret_what, what_size);
    if (r < 0)
        goto out;
    struct record_head head = {
        .engine = server->engine, .server = server->name, .params = server->policy};
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        *bound_at(&head.params, i) = u32(json_object_get(limits, bounds[i].name));
    for (int k = 0; k < KNOB_COUNT; k++) {
        const json_t *one = json_object_get(limits, knob_name((enum knob)k));
        head.limit[k] = u32(json_object_get(one, "value"));
        head.pinned[k] = json_is_true(json_object_get(one, "pinned"));
    }
    double own_s = json_number_value(json_object_get(limits, "queue_start_s"));
    head.params.queue_start_s = own_s > 0 && own_s < 1e8 ? own_s : 0;
    double reserve = json_number_value(json_object_get(limits, "reserve_start"));
    head.params.reserve_start = reserve > 0 && reserve <= 1 ? reserve : 0;
    head.params.queue_outside = json_is_true(json_object_get(limits, "queue_outside"));
    head.write_failed = json_is_true(json_object_get(root, "write_failed"));
    head.fresh = json_is_true(json_object_get(root, "fresh"));
    json_int_t ready = json_integer_value(json_object_get(root, "ready_us"));
    head.ready_us = ready > 0 ? (uint64_t)ready : 0;
    *ret_head = head;
out:
    if (r == -EBADMSG && !ret_what[0])
        (void)snprintf(ret_what, what_size, "%s", what);
    json_decref(root);
    return r;
}
