/*
 * Prints the list of limits (--print-limits, by server/print.c) and proves at compile time that it
 * says what the other layers do: they may not include net, so their own constants are compared with
 * the rows here.
 */
#include "server/net/bounds.h"

#include <errno.h>
#include <stddef.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/api/past.h"
#include "server/engine/request.h"
#include "server/grammar/automaton.h"
#include "server/grammar/compile.h"
#include "server/grammar/schema.h"
#include "server/net/keyfile.h"
#include "server/text/answer/toolcall.h"

struct bounds_row {
    const char *name;
    unsigned long value;
    const char *unit, *what, *beyond;
};

#define ROW(name, value, unit, what, beyond) {#name, value, unit, what, beyond},
static const struct bounds_row rows[] = {HTTP_BOUNDS(ROW)};

/* Sizes of arrays elsewhere that the list must not contradict. */
_Static_assert((int)BOUND_API_KEYS == (int)KEY_LINES_MOST, "one limit of keys");
_Static_assert((int)BOUND_API_KEY_BYTES == (int)KEY_BYTES, "one limit of a key");
_Static_assert((int)BOUND_STOP_STRINGS == (int)DETOK_STOPS, "one limit of stop strings");
_Static_assert((int)BOUND_STOP_BYTES == (int)OPENAI_STOP_LEN, "one limit of a stop string");
_Static_assert((int)BOUND_STOP_IDS == (int)REQ_STOP_IDS, "one limit of stop ids");
_Static_assert((int)BOUND_JSON_DEPTH == (int)OPENAI_DEPTH, "one limit of depth");
_Static_assert((int)BOUND_CHOICES == (int)OPENAI_CHOICES, "one limit of answers");
_Static_assert((int)BOUND_ANSWERS == (int)OPENAI_N, "one limit of those of a prompt");
_Static_assert((int)BOUND_AT_ONCE == (int)OPENAI_AT_ONCE, "one limit of those at once");
_Static_assert((int)BOUND_BIASES == (int)EK_BIAS_MOST, "one limit of biases");
_Static_assert((int)BOUND_BAD_WORDS == (int)OPENAI_BAD_WORDS, "one limit of bad words");
_Static_assert((int)BOUND_BAD_WORD_BYTES == (int)OPENAI_BAD_WORD_LEN, "one limit of a bad word");
_Static_assert((int)BOUND_BAD_WORD_TOKENS == (int)EK_BAD_WORDS, "one limit of their tokens");
_Static_assert((int)BOUND_TOOL_CALLS == (int)TOOLCALL_MOST, "one limit of calls");
_Static_assert((int)BOUND_FORM_BYTES == (int)GRAMMAR_TEXT_MOST, "one limit of a form");
_Static_assert((int)BOUND_FORM_STATES == (int)AUTOMATON_STATES_MOST, "one limit of its states");
_Static_assert((int)BOUND_SCHEMA_LEVELS == (int)SCHEMA_NESTING, "one limit of a schema's depth");
_Static_assert((unsigned long long)BOUND_FORMS_MIB << 20 == GRAMMAR_ROOM, "one room for forms");
_Static_assert((int)BOUND_FORMS_KEY == 100 / (int)GRAMMAR_SHARE, "one limit of those of a key");
_Static_assert((int)BOUND_FORMS_KEPT == (int)GRAMMAR_KEPT, "one limit of forms");
_Static_assert((int)BOUND_RESPONSES == (int)PAST_MOST, "one limit of stored responses");
_Static_assert((int)BOUND_RESPONSES_KEY == 100 / (int)PAST_SHARE, "one limit of those of a key");
_Static_assert((int)BOUND_MESSAGES == (int)OPENAI_MESSAGES, "one limit of messages");

/* each character of a message may need six in JSON */
_Static_assert(6 * sizeof(((struct api_error *)0)->msg) +
                       6 * sizeof(((struct api_error *)0)->param) + 256 <
                   BOUND_ERROR_BYTES,
               "an error is that small");

int bounds_write(struct ek_buf *out)
{
    (void)ek_buf_puts(out, "| name | limit | of | beyond it |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        (void)ek_buf_printf(out, "| %s | %lu %s | %s | %s |\n", rows[i].name, rows[i].value,
                            rows[i].unit, rows[i].what, rows[i].beyond);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
