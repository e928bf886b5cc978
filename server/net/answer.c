/* Answers that are errors, see answer.h. Called by handlers, and by what refuses before them. */
#include "server/net/answer.h"

#include <string.h>

#include "server/api/ask.h"
#include "server/api/error.h"
#include "server/api/ollama.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/net/request.h"

void answer_error(struct answer *a, const struct api_error *err)
{
    a->status = err->status;
    a->type = "application/json";
    a->retry_after_s = err->retry_after_s;
    ek_buf_clear(&a->body);
    reply_error(&a->body, err);
}

void generation_answer_error(struct answer *a, enum openai_api api, const struct api_error *err)
{
    bool ollama = openai_is_ollama(api);
    answer_error(a, err);
    if (api != API_MESSAGES && !ollama)
        return;
    ek_buf_clear(&a->body);
    if (ollama)
        ollama_error(&a->body, err);
    else
        anthropic_error(&a->body, err);
}

void answer_fault(struct answer *a, int status, const char *param, const char *msg)
{
    struct api_error err;
    (void)api_refuse(&err, status, param, "%s", msg);
    answer_error(a, &err);
}

void answer_refuse(const struct exchange *x, struct answer *a, const struct api_error *err)
{
    static const char root[] = "/v1/messages", ollama[] = "/api/";
    const char *path = x->path ? x->path : "";
    bool messages = strncmp(path, root, sizeof(root) - 1) == 0;
    if (!messages && !x->route)
        messages = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Anthropic-Version");
    bool theirs = strncmp(path, ollama, sizeof(ollama) - 1) == 0;
    generation_answer_error(a, messages ? API_MESSAGES : theirs ? API_OLLAMA_CHAT : API_CHAT, err);
}

void answer_refuse_fault(const struct exchange *x, struct answer *a, int status, const char *msg)
{
    struct api_error err;
    (void)api_refuse(&err, status, "", "%s", msg);
    answer_refuse(x, a, &err);
}
