/*
 * Log lines. Under the journal they go there natively with fields, else to stderr as one line.
 * Levels: err something stopped; warning went on, and says how; notice an action was taken;
 * info start, plan, stop; debug the rest. The code that handles an error logs it, once; common/,
 * kernels/, server/text, server/model and the pure modules stay silent above debug. Never log
 * prompts, completions or keys. Any thread may call these.
 *
 * Logging never holds anybody up: from ek_log_open() on a thread writes the lines (common/spool.h).
 * While it keeps up, a line is written when ek_log() returns; else lines wait in a bounded queue,
 * then are dropped and counted, and the log says how many when it can be written again. At exit()
 * what is queued has a second. The descriptor stays as it is: it may be a terminal or a pipe that
 * others have, too, so it is not set to O_NONBLOCK.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum ek_log_level { EK_LOG_ERR = 3, EK_LOG_WARNING, EK_LOG_NOTICE, EK_LOG_INFO, EK_LOG_DEBUG };

/* Set for a child whose stderr is a stream of the journal: lines begin with <LEVEL> and nothing
 * else, since the journal knows the rest. */
#define EK_LOG_PREFIX_ENV "EVENKEEL_LOG_PREFIX"

/* `program` prefixes lines on stderr and is SYSLOG_IDENTIFIER in the journal. A string constant. */
/* The same without a thread of its own: each line is written where it is logged. For the beginning
 * of a process that gives rights away before it has a second thread. */
void ek_log_begin(const char *program, enum ek_log_level most);
void ek_log_open(const char *program, enum ek_log_level most);
/* Gives what is queued up to a second: before _exit(), which exit() does by itself. */
void ek_log_flush(void);
/* Lines that were dropped or could not be written. */
uint64_t ek_log_dropped(void);
/* Only while one thread runs, or where a line more or less does not matter. */
void ek_log_set_most(enum ek_log_level most);
bool ek_log_parse_level(const char *name, enum ek_log_level *ret_level);

void ek_log(enum ek_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * A line with a fixed message id (32 hex digits, see supervisor/io/journal.h and
 * packaging/evenkeel.catalog) and up to 16 "KEY=value" fields, fields[n] = NULL ends them.
 */
void ek_log_event(enum ek_log_level level, const char *message_id, const char *const *fields,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
