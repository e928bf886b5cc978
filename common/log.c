#include "common/log.h"

#include <errno.h>
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

#define MOST_FIELDS 16
#define LINE_BYTES  2048

static struct {
    const char *program;
    enum ek_log_level most;
    bool journal, prefix;
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

void ek_log_open(const char *program, enum ek_log_level most)
{
    g_log.program = program;
    g_log.most = most;
    g_log.journal = stderr_is_journal();
    g_log.prefix = getenv(EK_LOG_PREFIX_ENV) != NULL;
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

static void write_stderr(enum ek_log_level level, const char *line)
{
    char out[LINE_BYTES + 96];
    struct timespec t;
    struct tm tm;
    if (g_log.prefix) { /* the journal knows the time and the program */
        (void)dprintf(STDERR_FILENO, "<%d>%s\n", (int)level, line); /* nowhere else to complain */
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &t); /* a wrong time is better than no line */
    if (!gmtime_r(&t.tv_sec, &tm))
        memset(&tm, 0, sizeof(tm));
    int n = snprintf(out, sizeof(out), "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s: %s\n",
                     tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                     t.tv_nsec / 1000000, g_log.program, level_name(level), line);
    if (n > 0) {
        size_t len = (size_t)n < sizeof(out) ? (size_t)n : sizeof(out) - 1;
        ssize_t w = write(STDERR_FILENO, out, len); /* nowhere left to complain to */
        (void)w;
    }
}

static void emit(enum ek_log_level level, const char *id, const char *const *fields,
                 const char *line)
{
    if (!g_log.journal) {
        write_stderr(level, line);
        return;
    }
    char fixed[4][LINE_BYTES + 16];
    struct iovec iov[MOST_FIELDS + 4];
    int n = 0;
    (void)snprintf(fixed[0], sizeof(fixed[0]), "MESSAGE=%s", line);
    (void)snprintf(fixed[1], sizeof(fixed[1]), "PRIORITY=%d", (int)level);
    (void)snprintf(fixed[2], sizeof(fixed[2]), "SYSLOG_IDENTIFIER=%s", g_log.program);
    (void)snprintf(fixed[3], sizeof(fixed[3]), "MESSAGE_ID=%s", id ? id : "");
    for (int i = 0; i < (id ? 4 : 3); i++)
        iov[n++] = (struct iovec){fixed[i], strlen(fixed[i])};
    for (int i = 0; fields && fields[i] && i < MOST_FIELDS; i++) {
        /* sd-journal takes a non-const iovec but only reads it */
        union {
            const char *c;
            char *p;
        } u = {.c = fields[i]};
        iov[n++] = (struct iovec){u.p, strlen(u.p)};
    }
    if (sd_journal_sendv(iov, n) < 0)
        write_stderr(level, line);
}

/* Control characters would let a peer forge lines. */
static void clean(char *line)
{
    for (; *line; line++) {
        if ((unsigned char)*line < 0x20 || *line == 0x7F)
            *line = ' ';
    }
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
    clean(line);
    emit(level, id, fields, line);
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
