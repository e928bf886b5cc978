/* What a driver for tests says when a rule of the real one is broken: one sentence, and the end of
 * the program; on a card it would be an error, a wrong number or nothing at all. A test of the
 * rules themselves has it forgiven: the call then gives the documented error. See fake.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda/fake.h"
#include "tests/cuda/fake_inner.h"

static struct {
    bool forgives;
    char said[256];
} g_rules;

EXPORT void fake_forgive(bool forgives)
{
    g_rules.forgives = forgives;
    g_rules.said[0] = '\0';
}

EXPORT const char *fake_said(void)
{
    return g_rules.said;
}

int fake_broken(int result, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(g_rules.said, sizeof(g_rules.said), format, args);
    va_end(args);
    if (g_rules.forgives)
        return result;
    (void)fprintf(stderr, "a rule of the driver is broken: %s\n", g_rules.said);
    abort();
}

/* ---- handles ---- */

bool fake_is(const struct cu_opaque *o, enum object_kind kind)
{
    for (int i = 0; o && i < MOST_OBJECTS; i++)
        if (fake_g.object[i] == o)
            return o->kind == kind;
    return false;
}

bool fake_stream_is(const struct cu_opaque *stream)
{
    return fake_is(stream, STREAM) && stream->card == fake_current();
}

/* ---- memory ---- */

/* Device memory of the caller's card from `at` to `end` at most: where what begins at `at` ends. */
static uintptr_t end_at(uintptr_t at)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct range *r = &fake_g.range[i];
        const uintptr_t first = (uintptr_t)r->at;
        if ((r->kind == DEVICE || (r->kind == MAPPED && r->open)) && r->card == fake_current() &&
            at >= first && at < first + r->bytes)
            return first + r->bytes;
    }
    return 0;
}

bool fake_on_card(const void *from, size_t bytes)
{
    uintptr_t at = (uintptr_t)from;
    const uintptr_t last = at + bytes;

    for (uintptr_t end; at < last; at = end) { /* mapped pieces may follow one another */
        end = end_at(at);
        if (end == 0)
            return false;
    }
    return true;
}

enum fake_host fake_host(const void *from, size_t bytes)
{
    const char *at = from;
    enum fake_host found = PAGEABLE;

    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct range *r = &fake_g.range[i];
        if (!r->at || at >= r->at + r->bytes || r->at >= at + bytes)
            continue;
        if (r->kind == DEVICE || r->kind == RESERVED || r->kind == MAPPED)
            return NOT_OF_HOST;
        if (r->kind == PINNED || r->kind == REGISTERED)
            found = at >= r->at && at + bytes <= r->at + r->bytes ? IS_PINNED : STRADDLES;
    }
    return found;
}
