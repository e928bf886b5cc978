/*
 * What a client can grow has a limit, and all of them stand here: the code takes its numbers from
 * this list, docs/limits.md and the dictionary of the HTTP fuzzer are printed from it
 * (--print-limits). Limits that an operator sets are options; those rows name the flag.
 */
#pragma once

struct ek_buf;

/* X(name, value, unit, what it bounds, what happens beyond) */
#define HTTP_BOUNDS(X)                                                                             \
    X(URI_BYTES, 4096, "bytes", "target of a request", "414")                                      \
    X(HEADERS, 100, "headers", "of a request", "431")                                              \
    X(HEADER_BYTES, 16384, "bytes", "all headers of a request", "431")                             \
    X(METHOD_BYTES, 15, "bytes", "method of a request", "400")                                     \
    X(BODY_LOADING, 1048576, "bytes", "body, while the model loads", "413")                        \
    X(BODY_SWALLOW, 8, "times --max-body-bytes",                                                   \
      "body that is read and dropped so that the refusal is seen", "connection closed")            \
    X(MEMORY, 256, "times --max-body-bytes",                                                       \
      "open requests together: bodies, what their JSON becomes, answers until they are read",      \
      "503")                                                                                       \
    X(MEMORY_KEY, 128, "times --max-body-bytes", "those of one key, when there are keys", "429")   \
    X(BODY_JSON, 32, "times --max-body-bytes", "what the JSON of one body becomes", "413")         \
    X(BODY_INLINE, 65536, "bytes", "body that an HTTP thread reads itself",                        \
      "the encoder's thread does, as it compiles forms")                                           \
    X(REQUEST_ID_BYTES, 159, "bytes", "X-Request-Id that is echoed", "another id is made")         \
    X(STREAM_BYTES, 262144, "bytes", "events of one stream not yet read", "rendering waits")       \
    X(SLOW_READER_BYTES, 65536, "bytes", "events of one stream not yet read",                      \
      "connection closed after SLOW_READER_S")                                                     \
    X(SLOW_READER_S, 30, "seconds",                                                                \
      "more than SLOW_READER_BYTES wait and the client takes none of them", "connection closed")   \
    X(ANSWER_S, 30, "seconds",                                                                     \
      "reading of an answer that is not streamed, and what ANSWER_RATE gives for its bytes",       \
      "connection closed")                                                                         \
    X(ANSWER_RATE, 32768, "bytes/s", "least speed at which a client reads such an answer",         \
      "connection closed")                                                                         \
    X(DRAIN_READER_S, 7, "seconds",                                                                \
      "while the server drains: reading of an answer that is made, or bytes of one that is not "   \
      "wait and a client over TCP takes none",                                                     \
      "connection closed")                                                                         \
    X(UNSENT_BYTES, 65536, "bytes", "of one connection that wait in the kernel unsent",            \
      "the stream waits")                                                                          \
    X(UNACKED_S, 60, "seconds",                                                                    \
      "sent data that a client does not acknowledge; of a stream SLOW_READER_S is told first",     \
      "connection closed")                                                                         \
    X(PARKED, 256, "connections", "accepted beyond --max-connections", "wait in the kernel")       \
    X(HEALTH_CONNECTIONS, 256, "connections",                                                      \
      "that begin with a route that is always answered: beside --max-connections",                 \
      "as other connections; from half of them on closed after each answer")                       \
    X(IDLE_MS, 500, "ms", "without a request on a connection, while others are parked",            \
      "connection closed, of those that are so at least half as long as the longest")              \
    X(ARRIVE_S, 5, "seconds", "a request to arrive, while others are parked",                      \
      "connection closed, of those that take at least half as long as the longest")                \
    X(CONTROL_CONNECTIONS, 64, "connections", "of the control socket", "wait in the kernel")       \
    X(CONNECTION_BYTES, 32768, "bytes", "buffers of one connection", "431")                        \
    X(API_KEYS, 64, "keys", "of all sources", "start or reload refused")                           \
    X(API_KEY_BYTES, 512, "bytes", "one key", "401")                                               \
    X(KEY_FILE_BYTES, 262144, "bytes", "file of keys", "start or reload refused")                  \
    X(PEM_BYTES, 1048576, "bytes", "file of certificates or a key", "start or reload refused")     \
    X(JSON_DEPTH, 64, "levels", "nesting of a body", "400")                                        \
    X(MESSAGES, 4096, "messages", "of a chat", "400")                                              \
    X(STOP_STRINGS, 16, "strings", "in `stop`", "400")                                             \
    X(STOP_BYTES, 256, "bytes", "one stop string", "400")                                          \
    X(STOP_IDS, 32, "ids", "in `stop_token_ids`, those of the model included", "400")              \
    X(CHOICES, 2048, "answers", "of a request: prompts times `n`", "400")                          \
    X(ANSWERS, 128, "answers", "of one prompt: `n`", "400")                                        \
    X(AT_ONCE, 128, "answers", "of one request that are in the engine and its queue",              \
      "the others follow as these end")                                                            \
    X(BIASES, 1024, "ids", "in `logit_bias`", "400")                                               \
    X(BAD_WORDS, 256, "strings", "in `bad_words`", "400")                                          \
    X(BAD_WORD_BYTES, 256, "bytes", "one of them", "400")                                          \
    X(BAD_WORD_TOKENS, 1024, "words", "their tokens, with and without a blank before them", "400") \
    X(TOOL_CALLS, 128, "calls", "of an answer", "the rest stays text")                             \
    X(FORM_BYTES, 262144, "bytes", "schema, pattern or grammar that an answer must match", "400")  \
    X(FORM_STATES, 65536, "states", "of such a form, compiled", "400")                             \
    X(SCHEMA_LEVELS, 48, "levels", "nesting of a schema", "400")                                   \
    X(FORMS_MIB, 1024, "MiB", "compiled forms of open requests and kept ones, all together",       \
      "429 while they are open")                                                                   \
    X(FORMS_KEY, 50, "%", "of them and of the kept ones, those made for one key",                  \
      "429 while they are open; its oldest is compiled again")                                     \
    X(FORMS_KEPT, 48, "forms", "compiled ones that are kept", "the oldest is compiled again")      \
    X(RESPONSES, 16384, "responses",                                                               \
      "stored with --responses-store-bytes, those that later ones go on from included",            \
      "the oldest goes")                                                                           \
    X(RESPONSES_KEY, 50, "%", "of them and of --responses-store-bytes, those of one key",          \
      "its oldest goes")                                                                           \
    X(ERROR_BYTES, 4096, "bytes", "answer that says what was wrong", "sentences are cut")

#define HTTP_BOUND_(name, value, unit, what, beyond) BOUND_##name = (value),
enum http_bound { HTTP_BOUNDS(HTTP_BOUND_) };
#undef HTTP_BOUND_

/* The list as Markdown. 0 or -ENOMEM. */
int bounds_write(struct ek_buf *out);
