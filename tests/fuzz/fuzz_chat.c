/*
 * A model's chat template and the variables of a request together, as the API renders them: the
 * template up to a zero byte, then `chat_template_kwargs` as a JSON object, beside a conversation
 * that its `messages` replaces. The data has what begins a special token, so that it is guarded.
 *
 * Whatever both say must end within its fuel and its memory, in text that is UTF-8 and can be made
 * tokens of, or in a message.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/text/chat.h"
#include "server/text/jinja/str.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/fuzz/template_input.h"

#define FUEL 3000000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tokens[] =
    "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"merges\":["
    "\"a b\"],\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3,\"<\":4,\"s\":5,\">\":6}},"
    "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":10,\"content\":\"<|end|>\",\"special\":true}]}";

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"a<s>b<|en\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"x\":[1,true]}}}]}]";

static struct tokenizer *tokenizer_made(void)
{
    static struct tokenizer *t;
    struct ek_fault fault;
    json_t *root = t ? NULL : json_loads(tokens, 0, NULL);
    if (!t && tok_build(root, NULL, &t, &fault) < 0)
        abort();
    json_decref(root);
    return t;
}

/* A template comes from a file. NULL: it is none, and there is a message. */
static struct chat *chat_of(const char *text, size_t len)
{
    struct chat *c = NULL;
    struct ek_fault fault = {0};
    char path[32];
    int fd = memfd_create("template", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, len) != (ssize_t)len)
        abort();
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int r = chat_load("/proc/self/fdinfo", path, &c, &fault);
    (void)close(fd);
    if (r < 0 && (r != -EBADMSG || !fault.msg[0]))
        abort(); /* refused without a message */
    return c;
}

static void render(const struct chat *c, const json_t *context)
{
    const struct tokenizer *tok = tokenizer_made();
    struct ek_work work = {.fuel = FUEL};
    struct token_vec v = {.limit = 1000000};
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    uint32_t guard = 0;
    int r = chat_render(c, tok, context, &work, &out, &guard, &fault);
    if (r != 0 && (r != -EBADMSG || out.len || (!fault.msg[0] && !ek_work_stopped(&work))))
        abort(); /* another failure, text left behind, or no message */
    if (jstr_valid((struct jstr){out.data, out.len}) < out.len)
        abort(); /* text that is not UTF-8 */
    if (r == 0 && tokenizer_encode(tok, out.data ? out.data : "", out.len, true, guard, &v) == 0)
        for (size_t i = 0; i < v.count; i++)
            if (v.at[i] > 10)
                abort(); /* a token that does not exist */
    token_vec_done(&v);
    ek_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct template_input in = template_input_of(data, size);
    json_t *context = in.context ? in.context : json_object();
    if (!json_object_get(context, "messages"))
        (void)json_object_set_new(context, "messages", json_loads(conversation, 0, NULL));
    struct chat *c = chat_of(in.text, in.len);
    if (c)
        render(c, context);
    chat_free(c);
    json_decref(context);
    return 0;
}
