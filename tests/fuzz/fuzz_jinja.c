/*
 * A template from the input, up to a zero byte, then the JSON object it is rendered with (without
 * one, a small conversation). Whatever it says must end soon, within the limits, in text or in a
 * message with a place.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/str.h"
#include "tests/fuzz/template_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct jinja_limits limits = {
    .fuel = 20000,
    .output_bytes = 1u << 18,
    .memory_bytes = 4u << 20,
    .depth = 100,
    .calls = 10,
};

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "
    "\"\xc3\xa9 <think>a</think> b\", \"n\": 1.5, \"x\": null}], \"tools\": [{\"a\": {\"b\": [1, "
    "true]}}], \"s\": \"a-b c\", \"l\": [3, 1, 2], \"add_generation_prompt\": true}";

static void render(const struct jinja *t, const json_t *context)
{
    struct jinja_env env = {.context = context, .now_s = 1764000000, .limits = &limits};
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    int r = jinja_render(t, &env, &out, &fault);
    if (r == -EBADMSG && !strstr(fault.msg, "chat template"))
        abort(); /* refused without saying so */
    if (r != 0 && (r != -EBADMSG || out.len))
        abort(); /* another failure, or text left behind */
    if (jstr_valid((struct jstr){out.data, out.len}) < out.len)
        abort(); /* text that is not UTF-8 */
    ek_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct template_input in = template_input_of(data, size);
    json_t *context =
        in.context ? in.context : json_loadb(conversation, sizeof(conversation) - 1, 0, NULL);
    struct jinja *t = NULL;
    struct ek_fault fault = {0};
    int r = jinja_parse(in.text, in.len, &t, &fault);
    if (r == 0)
        render(t, context);
    else if (r != -EBADMSG || !fault.msg[0])
        abort(); /* refused without a message */
    jinja_free(t);
    json_decref(context);
    return 0;
}
