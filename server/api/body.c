/*
 * Which form a whole answer has (body.h): called by the exchange when a generation that is no
 * stream is over. What a stream says is chosen in sse.c.
 */
#include "server/api/body.h"

#include "server/api/embed.h"
#include "server/api/generation.h"
#include "server/api/infill.h"
#include "server/api/ollama.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"

void body_write(struct ek_buf *out, struct generation *g)
{
    switch (g->ask.api) {
    case API_CHAT:
    case API_PLAIN: reply_completion(out, g); break;
    case API_RESPONSES: responses_reply(out, g); break;
    case API_MESSAGES: anthropic_reply(out, g); break;
    case API_EMBED: embed_reply(out, g); break;
    case API_OLLAMA_CHAT:
    case API_OLLAMA_TEXT: ollama_reply(out, g); break;
    case API_OLLAMA_EMBED: ollama_embed_reply(out, g); break;
    case API_INFILL: infill_reply(out, g); break;
    case API_RERANK:
    case API_SCORE:
    case API_CLASSIFY:
    case API_POOLING: scored_reply(out, g); break;
    case API_TOKENIZE:
    case API_DETOKENIZE:
    case API_COUNT: break;
    }
}
