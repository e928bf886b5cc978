/*
 * The fields of struct life and struct backoff in state.json, read and written for state.c. With a
 * state or wish that this version does not know all of the life is dropped, as if none had been
 * written.
 */
#include "supervisor/io/state_life.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/io/state.h"

static uint64_t time_in(const json_t *j)
{
    json_int_t v = json_integer_value(j);
    return v > 0 ? (uint64_t)v : 0;
}

static uint32_t count_in(const json_t *j)
{
    json_int_t v = json_integer_value(j);
    return v > 0 && v <= INT32_MAX ? (uint32_t)v : 0;
}

static void parse_life(const json_t *j, struct life *l)
{
    const char *planned = json_string_value(json_object_get(j, "planned"));
    *l = (struct life){
        .boot = time_in(json_object_get(j, "boot")),
        .state = life_state_parse(json_string_value(json_object_get(j, "state"))),
        .want = life_want_parse(json_string_value(json_object_get(j, "want"))),
        .pid = (int32_t)count_in(json_object_get(j, "pid")),
        .until_us = time_in(json_object_get(j, "until_us")),
        .ramp = count_in(json_object_get(j, "ramp")),
        .planned = planned != NULL,
        .asked = json_is_true(json_object_get(j, "asked")),
        .waits = json_is_true(json_object_get(j, "waits")),
        .found = json_is_true(json_object_get(j, "found")),
        .loosened = json_is_true(json_object_get(j, "loosened")),
    };
    if (planned)
        (void)snprintf(l->planned_name, sizeof(l->planned_name), "%s", planned);
    if (l->state == SERVER_STATES || l->want == SERVER_WANTS)
        *l = (struct life){0};
}

static void parse_backoff(const json_t *j, struct backoff *b)
{
    const char *cls = json_string_value(json_object_get(j, "start_class"));
    const json_t *exits = json_object_get(j, "exits_us");
    double next_s = json_number_value(json_object_get(j, "next_s"));
    size_t n = json_array_size(exits);
    *b = (struct backoff){
        .next_s = next_s > 0 && next_s <= BACKOFF_MOST_S ? next_s : 0,
        .ready_us = time_in(json_object_get(j, "ready_us")),
        .start_failures = count_in(json_object_get(j, "start_failures")),
        .open = json_is_true(json_object_get(j, "open")),
        .by_start = json_is_true(json_object_get(j, "by_start")),
        .start_class = CRASH_UNKNOWN,
    };
    for (int i = 0; cls && i < CRASH_COUNT; i++) {
        if (strcmp(cls, crash_name((enum crash_class)i)) == 0)
            b->start_class = (enum crash_class)i;
    }
    for (size_t i = 0; i < n && i < BACKOFF_REMEMBERS; i++)
        b->exits_us[b->exits++] = time_in(json_array_get(exits, i));
}

void state_life_parse(const json_t *row, struct state_server *into)
{
    const json_t *backoff = json_object_get(row, "backoff");
    parse_life(json_object_get(row, "life"), &into->life);
    if (backoff)
        parse_backoff(backoff, &into->backoff);
    else if (json_is_true(json_object_get(row, "breaker_open")))
        into->backoff.open = into->backoff.by_start = true; /* a start that is ready closes it */
}

static void put_life(const struct life *l, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        ",\"life\":{\"boot\":%llu,\"state\":\"%s\",\"want\":\"%s\",\"pid\":%d,"
                        "\"until_us\":%llu,\"ramp\":%u",
                        (unsigned long long)l->boot, life_state_name(l->state),
                        life_want_name(l->want), (int)l->pid, (unsigned long long)l->until_us,
                        l->ramp);
    if (l->planned)
        (void)ek_buf_printf(out, ",\"planned\":\"%s\"", l->planned_name);
    if (l->asked)
        (void)ek_buf_puts(out, ",\"asked\":true");
    if (l->waits)
        (void)ek_buf_puts(out, ",\"waits\":true");
    if (l->found)
        (void)ek_buf_puts(out, ",\"found\":true");
    if (l->loosened)
        (void)ek_buf_puts(out, ",\"loosened\":true");
    (void)ek_buf_puts(out, "}");
}

static void put_backoff(const struct backoff *b, struct ek_buf *out)
{
    uint32_t kept = b->exits < BACKOFF_REMEMBERS ? b->exits : BACKOFF_REMEMBERS;
    (void)ek_buf_printf(out,
                        ",\"backoff\":{\"next_s\":%.3f,\"ready_us\":%llu,\"start_class\":\"%s\","
                        "\"start_failures\":%u,\"open\":%s,\"by_start\":%s,\"exits_us\":[",
                        b->next_s, (unsigned long long)b->ready_us, crash_name(b->start_class),
                        b->start_failures, b->open ? "true" : "false",
                        b->by_start ? "true" : "false");
    for (uint32_t i = 0; i < kept; i++) /* oldest first */
        (void)ek_buf_printf(
            out, "%s%llu", i ? "," : "",
            (unsigned long long)b->exits_us[(b->exits - kept + i) % BACKOFF_REMEMBERS]);
    (void)ek_buf_puts(out, "]}");
}

void state_life_put(const struct state_server *one, struct ek_buf *out)
{
    if (one->life.boot)
        put_life(&one->life, out);
    if (one->backoff.open) /* an evenkeeld of before this reads no more */
        (void)ek_buf_puts(out, ",\"breaker_open\":true");
    put_backoff(&one->backoff, out);
}
