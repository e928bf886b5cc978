/*
 * Log lines. Under the journal they go there natively with fields, else to stderr as one line.
 * Levels: err something stopped; warning went on, and says how; notice an action was taken;
 * info start, plan, stop; debug the rest. Whoever handles an error logs it, once; common/,
 * kernels/, server/text, server/model and the pure modules stay silent above debug. Never log
 * prompts, completions or keys. Any thread may call these.
 */
#pragma once

#include <stdbool.h>

enum ek_log_level { EK_LOG_ERR = 3, EK_LOG_WARNING, EK_LOG_NOTICE, EK_LOG_INFO, EK_LOG_DEBUG };

/* Set for a child whose stderr is a stream of the journal: lines begin with <LEVEL> and nothing
 * else, since the journal knows the rest. */
#define EK_LOG_PREFIX_ENV "EVENKEEL_LOG_PREFIX"

/* `program` prefixes lines on stderr and is SYSLOG_IDENTIFIER in the journal. A string constant. */
void ek_log_open(const char *program, enum ek_log_level most);
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
