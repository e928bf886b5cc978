/* The tokenizer's configuration for clients (tokinfo.h). Called once at start. */
#include "server/text/tokinfo.h"

#include <errno.h>
#include <stdlib.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/chat.h"
#include "server/text/textfile.h"

#define FILE_BYTES_MOST (64u << 20)

static int read_config(struct ek_bundle *b, const char *dir, json_t **ret_config,
                       struct ek_fault *fault)
{
    struct ek_buf path = {0}, text = {0};
    json_error_t e;
    json_t *config = NULL;
    (void)ek_buf_printf(&path, "%s/tokenizer_config.json", dir);
    int r = ek_buf_ok(&path) ? text_file_read(b, path.data, "tokenizer_config.json",
                                              FILE_BYTES_MOST, &text, fault)
                             : -ENOMEM;
    if (r == 0)
        config = json_loadb(text.data, text.len, 0, &e);
    else if (r == -ENOENT)
        config = json_object();
    if ((r == 0 || r == -ENOENT) && !json_is_object(config))
        r = config || r == 0
                ? ek_fault_set(fault, "tokenizer_config.json",
                               "tokenizer_config.json is not a JSON object; download it again")
                : -ENOMEM;
    else if (r == 0 || r == -ENOENT) {
        *ret_config = config;
        config = NULL;
        r = 0;
    }
    json_decref(config);
    ek_buf_done(&path);
    ek_buf_done(&text);
    return r;
}

int tokinfo_write(struct ek_bundle *b, const char *dir, const struct chat *chat, struct ek_buf *out,
                  struct ek_fault *fault)
{
    json_t *config = NULL;
    char *text = NULL;
    int r = read_config(b, dir, &config, fault);
    if (r < 0)
        return r;
    (void)json_object_del(config, "vocab_file"); /* it need not be there */
    (void)json_object_del(config, "merges_file");
    const char *source = chat ? chat_source(chat) : NULL;
    if (json_object_set_new(config, "chat_template",
                            source ? json_string_nocheck(source) : json_null()) == 0)
        text = json_dumps(config, JSON_COMPACT);
    r = text ? ek_buf_puts(out, text) : -ENOMEM;
    free(text);
    json_decref(config);
    return r;
}
