/*
 * One HTTP exchange: libmicrohttpd's callbacks, from the request line to the last byte of the
 * answer.
 *
 * States: begun (headers checked) -> whole (body there, handler ran) -> suspended <-> pumped ->
 * replied -> closed. While suspended MHD forgets the connection; the worker resumes it when the
 * engine has news or the peer has left.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

struct conn;
struct exchange;
struct worker;

/* MHD_OPTION_URI_LOG_CALLBACK, the access handler, MHD_OPTION_NOTIFY_COMPLETED. cls = worker. */
void *exchange_open(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **con_cls);
void exchange_close(void *cls, struct MHD_Connection *mhd, void **con_cls,
                    enum MHD_RequestTerminationCode why);

/* Frees what is left of a connection's request: MHD ends some without MHD_OPTION_NOTIFY_COMPLETED
 * (a question of more parts than it has room for). Before the connection's next one and at its end;
 * as a rule there is nothing. */
void exchange_drop(struct conn *c);

/* The engine has news for this worker. */
void exchange_pump(struct exchange *x);
/* Looked at now and then while a generation runs: readers that are too slow are cut, streams that
 * have nothing to say show that they are alive. */
void exchange_tick(struct exchange *x, uint64_t now_us);
/* Whether the answer has begun and nothing of it is computed: what is left is that its client reads
 * it. A stream may have more to be rendered, or handed to the engine, once some of it is read. */
bool exchange_is_made(const struct exchange *x);
/* The client does not read: it is counted, the connection is closed. */
void exchange_cut(struct exchange *x);
/* The peer has left, or the thread stops: the request ends, the connection is closed. */
void exchange_leave(struct exchange *x);
