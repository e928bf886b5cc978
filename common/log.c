/*
 * From ek_log() to the journal or stderr. The caller's thread formats the line, makes control
 * characters blanks and pushes one record, a log_head, the line and its fields, into the spool; the
 * spool's thread writes it. Before ek_log_open(), or when there is no memory for a spool, the
 * caller writes.
 *
 * State is a global, as an exception: any code may log. `torn` belongs to the thread that writes:
 * after an incomplete write the next line starts with a newline.
 */
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include "common/buf.h"
#include "common/spool.h"

#define MOST_FIELDS  16
#define LINE_BYTES   2048
#define QUEUE_BYTES  131072 /* a thousand lines */
#define PATIENCE_MS  20u    /* that a line may take while its caller waits */
#define LAST_WORD_MS 1000u  /* that what is queued at the end may take */

/* What lies in the queue before the line and its fields, each with its NUL. */
struct log_head {
    enum ek_log_level level;
    int fields;
    const char *id; /* a constant, or NULL */
    struct timespec at;
};

static struct {
    const char *program;
    enum ek_log_level most;
    bool journal, prefix;
    bool torn;              /* the last line on stderr has no end; the writing thread's own */
    struct ek_spool *spool; /* NULL: lines are written where they are logged */
} g_log = {.program = "evenkeel", .most = EK_LOG_INFO};

/* True when stderr is the journal's own stream (JOURNAL_STREAM=dev:inode names it). */
static bool stderr_is_journal(void)
{
    const char *s = getenv("JOURNAL_STREAM");
    char *end;
    struct stat st;
    if (!s || fstat(STDERR_FILENO, &st) != 0)
        return false;
    errno = 0;
    unsigned long long dev = strtoull(s, &end, 10);
    if (errno || *end != ':')
        return false;
    unsigned long long ino = strtoull(end + 1, &end, 10);
    return !errno && *end == '\0' && st.st_dev == dev && st.st_ino == ino;
}

void ek_log_set_most(enum ek_log_level most)
{
    g_log.most = most;
}

static const char *level_name(enum ek_log_level level)
{
    switch (level) {
    case EK_LOG_ERR: return "error";
    case EK_LOG_WARNING: return "warning";
    case EK_LOG_NOTICE: return "notice";
    case EK_LOG_INFO: return "info";
    case EK_LOG_DEBUG: return "debug";
    }
    return "";
}

bool ek_log_parse_level(const char *name, enum ek_log_level *ret_level)
{
    for (int i = EK_LOG_ERR; i <= EK_LOG_DEBUG; i++) {
        if (strcasecmp(name, level_name((enum ek_log_level)i)) == 0) {
            *ret_level = (enum ek_log_level)i;
            return true;
        }
    }
    return false;
}

/* All of it, however long that takes. False when it cannot be written. */
static bool write_whole(const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, text, len);
        if (n >= 0) {
            text += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) { /* another process made this descriptor non-blocking */
            struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
            (void)poll(&p, 1, -1); /* the next write says what is wrong */
        } else if (errno != EINTR) {
            return false;
        }
        g_log.torn = len > 0;
    }
    return true;
}

static bool write_stderr(const struct log_head *head, const char *line)
{
    char out[LINE_BYTES + 96];
    struct tm tm;
    int n;
    if (g_log.torn && !write_whole("\n", 1))
        return false;
    if (g_log.prefix) { /* the journal knows the time and the program */
        n = snprintf(out, sizeof(out), "<%d>%s\n", (int)head->level, line);
    } else {
        if (!gmtime_r(&head->at.tv_sec, &tm))
            memset(&tm, 0, sizeof(tm));
        n = snprintf(out, sizeof(out), "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s: %s\n",
                     tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                     head->at.tv_nsec / 1000000, g_log.program, level_name(head->level), line);
    }
    return n > 0 && write_whole(out, (size_t)n < sizeof(out) ? (size_t)n : sizeof(out) - 1);
}

static bool write_journal(const struct log_head *head, const char *line, const char *const *fields)
{
    char fixed[4][LINE_BYTES + 16];
    struct iovec iov[MOST_FIELDS + 4];
    int n = 0;
    (void)snprintf(fixed[0], sizeof(fixed[0]), "MESSAGE=%s", line);
    (void)snprintf(fixed[1], sizeof(fixed[1]), "PRIORITY=%d", (int)head->level);
    (void)snprintf(fixed[2], sizeof(fixed[2]), "SYSLOG_IDENTIFIER=%s", g_log.program);
    (void)snprintf(fixed[3], sizeof(fixed[3]), "MESSAGE_ID=%s", head->id ? head->id : "");
    for (int i = 0; i < (head->id ? 4 : 3); i++)
        iov[n++] = (struct iovec){fixed[i], strlen(fixed[i])};
    for (int i = 0; i < head->fields; i++) {
        /* sd-journal takes a non-const iovec but only reads it */
        union {
            const char *c;
            char *p;
        } u = {.c = fields[i]};
        iov[n++] = (struct iovec){u.p, strlen(u.p)};
    }
    return sd_journal_sendv(iov, n) >= 0 || write_stderr(head, line);
}

static bool write_out(const struct log_head *head, const char *line, const char *const *fields)
{
    return g_log.journal ? write_journal(head, line, fields) : write_stderr(head, line);
}

/* In the thread of the queue. */
static bool write_record(void *ctx, const char *record, size_t len, uint64_t missing)
{
    struct log_head head = {.level = EK_LOG_WARNING};
    const char *fields[MOST_FIELDS] = {NULL};
    (void)ctx;
    (void)len; /* each part has its NUL */
    if (missing > 0) {
        char line[128];
        (void)clock_gettime(CLOCK_REALTIME, &head.at); /* a wrong time is better than no line */
        (void)snprintf(line, sizeof(line),
                       "%llu lines of this log were dropped: for a while it could not be written",
                       (unsigned long long)missing);
        if (!write_out(&head, line, fields))
            return false;
    }
    if (!record)
        return true;
    memcpy(&head, record, sizeof(head));
    const char *line = record + sizeof(head), *at = line + strlen(line) + 1;
    for (int i = 0; i < head.fields; i++) {
        fields[i] = at;
        at += strlen(at) + 1;
    }
    return write_out(&head, line, fields);
}

static void log_emit(enum ek_log_level level, const char *id, const char *const *fields,
                     const char *line)
{
    struct log_head head = {.level = level, .id = id};
    struct iovec part[MOST_FIELDS + 2];
    (void)clock_gettime(CLOCK_REALTIME, &head.at); /* a wrong time is better than no line */
    while (fields && fields[head.fields] && head.fields < MOST_FIELDS)
        head.fields++;
    if (!g_log.spool) {
        (void)write_out(&head, line, fields); /* nowhere left to complain to */
        return;
    }
    for (int i = -2; i < head.fields; i++) {
        union {
            const void *c;
            void *p;
        } u = {.c = i == -2 ? (const void *)&head : i == -1 ? line : fields[i]};
        part[i + 2] = (struct iovec){u.p, i == -2 ? sizeof(head) : strlen(u.c) + 1};
    }
    (void)ek_spool_push(g_log.spool, part, head.fields + 2, level <= EK_LOG_WARNING); /* counted */
}

__attribute__((format(printf, 4, 0))) static void write_line(enum ek_log_level level,
                                                             const char *id,
                                                             const char *const *fields,
                                                             const char *fmt, va_list ap)
{
    char line[LINE_BYTES];
    if (level > g_log.most)
        return;
    (void)vsnprintf(line, sizeof(line), fmt, ap); /* a longer line is cut */
    ek_text_clean(line);
    log_emit(level, id, fields, line);
}

static void flush_at_exit(void)
{
    ek_log_flush();
}

void ek_log_begin(const char *program, enum ek_log_level most)
{
    g_log.program = program;
    g_log.most = most;
    g_log.journal = stderr_is_journal();
    g_log.prefix = getenv(EK_LOG_PREFIX_ENV) != NULL;
}

void ek_log_open(const char *program, enum ek_log_level most)
{
    static const struct ek_spool_setup setup = {
        .name = "log", .bytes = QUEUE_BYTES, .patience_ms = PATIENCE_MS, .write = write_record};
    ek_log_begin(program, most);
    /* Without memory or a thread for it lines are written as before. */
    if (!g_log.spool && ek_spool_new(&setup, &g_log.spool) == 0)
        (void)atexit(flush_at_exit); /* else main() has to do it */
}

void ek_log_flush(void)
{
    if (g_log.spool)
        (void)ek_spool_flush(g_log.spool, LAST_WORD_MS); /* what is not out by then stays */
}

uint64_t ek_log_dropped(void)
{
    return g_log.spool ? ek_spool_dropped(g_log.spool) : 0;
}

void ek_log(enum ek_log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(level, NULL, NULL, fmt, ap);
    va_end(ap);
}

void ek_log_event(enum ek_log_level level, const char *message_id, const char *const *fields,
                  const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(level, message_id, fields, fmt, ap);
    va_end(ap);
}
