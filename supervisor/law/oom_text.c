/*
 * What a server's log says of its end, see oom_text.h, and the numbers of an out-of-memory line.
 *
 * Text is weak evidence, because a log may echo what a user wrote. A phrase counts only where a
 * program would write it: at the start of a line or after a log prefix, never behind a quote.
 */
#include "supervisor/law/oom_text.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "common/promtext.h"
#include "supervisor/law/oom.h"

#define LOG_MOST  (256u << 10) /* bytes of the tail that are looked at */
#define LINE_MOST 2048

static const char *oom_find(struct oom_text s, const char *what)
{
    return memmem(s.at, s.len, what, strlen(what));
}

/* Whether a program wrote the phrase itself: nothing quoted before it, no request logged. */
static bool is_own(struct oom_text line, const char *phrase)
{
    static const char *const echoes[] = {"prompt", "content", "Received request", "messages"};
    struct oom_text before = {line.at, (size_t)(phrase - line.at)};
    for (size_t i = 0; i < before.len; i++) {
        char c = before.at[i];
        bool in_word = i > 0 && isalpha((unsigned char)before.at[i - 1]); /* as in "model's" */
        if (c == '"' || c == '{' || (c == '\'' && !in_word))
            return false;
    }
    for (size_t i = 0; i < sizeof(echoes) / sizeof(echoes[0]); i++) {
        if (oom_find(before, echoes[i]))
            return false;
    }
    return true;
}

struct oom_text oom_cut_log(const char *text, size_t len)
{
    if (!text)
        return (struct oom_text){"", 0};
    if (len > LOG_MOST) {
        text += len - LOG_MOST;
        len = LOG_MOST;
    }
    return (struct oom_text){text, len};
}

struct oom_text oom_end_of_log(const struct crash_evidence *e)
{
    enum { MOST = 160 };
    struct oom_text log = oom_cut_log(e->log, e->log ? e->log_len : 0);
    while (log.len > 0 && isspace((unsigned char)log.at[log.len - 1]))
        log.len--;
    const char *newline = memrchr(log.at, '\n', log.len);
    struct oom_text line = {newline ? newline + 1 : log.at, 0};
    line.len = (size_t)(log.at + log.len - line.at);
    if (line.len > MOST)
        line.len = MOST;
    return line;
}

bool oom_last_line(struct oom_text log, const char *const *phrases, struct oom_text *ret_line)
{
    const char *end = log.at + log.len;
    while (end > log.at) {
        const char *newline = memrchr(log.at, '\n', (size_t)(end - log.at));
        struct oom_text line = {newline ? newline + 1 : log.at, 0};
        line.len = (size_t)(end - line.at);
        if (line.len > LINE_MOST)
            line.len = LINE_MOST;
        for (const char *const *p = phrases; *p; p++) {
            const char *hit = oom_find(line, *p);
            if (hit && is_own(line, hit)) {
                *ret_line = line;
                return true;
            }
        }
        if (!newline)
            break;
        end = newline;
    }
    return false;
}

/* A unit at s: its size in bytes and, in *ret_len, its length; 0 if there is none. */
static double oom_text_unit(struct oom_text s, size_t *ret_len)
{
    static const struct {
        const char *text;
        double bytes;
    } units[] = {
        {"bytes", 1},    {"GiB", 1073741824.0}, {"MiB", 1048576.0},
        {"KiB", 1024.0}, {"TiB", 1.0995e12},    {"GB", 1e9},
        {"MB", 1e6},     {"kB", 1e3},           {"KB", 1e3},
        {"B", 1},
    };
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t n = strlen(units[i].text);
        if (s.len >= n && memcmp(s.at, units[i].text, n) == 0) {
            *ret_len = n;
            return units[i].bytes;
        }
    }
    return 0;
}

static bool ends_with(struct oom_text before, const char *word)
{
    size_t n = strlen(word);
    return before.len >= n && strncasecmp(before.at + before.len - n, word, n) == 0;
}

static bool starts_with(struct oom_text after, const char *word)
{
    size_t n = strlen(word);
    return after.len >= n && strncasecmp(after.at, word, n) == 0;
}

struct raw_numbers {
    uint64_t requested, free, reserved, capacity, allocated, reserved_all;
};

/* What a size in the line means, by the words around it. */
static void oom_text_assign(struct raw_numbers *n, struct oom_text before, struct oom_text after,
                            uint64_t bytes)
{
    static const char *const ask[] = {"allocate ", "requested ", "request of ", "needs ", "need "};
    for (size_t i = 0; i < sizeof(ask) / sizeof(ask[0]); i++) {
        if (ends_with(before, ask[i])) {
            n->requested = bytes;
            return;
        }
    }
    if (ends_with(before, "capacity of ") || ends_with(before, "capacity ") ||
        starts_with(after, " total capacity") || starts_with(after, " capacity"))
        n->capacity = bytes;
    else if (starts_with(after, " is free") || starts_with(after, " free") ||
             ends_with(before, "free "))
        n->free = bytes;
    else if (starts_with(after, " is reserved by PyTorch but unallocated") ||
             starts_with(after, " reserved but") || ends_with(before, "reserved "))
        n->reserved = bytes;
    else if (starts_with(after, " reserved in total"))
        n->reserved_all = bytes;
    else if (starts_with(after, " already allocated"))
        n->allocated = bytes;
}

static void read_numbers(struct oom_text line, struct oom_numbers *ret_numbers)
{
    struct raw_numbers n = {0};
    for (size_t i = 0; i < line.len;) {
        bool begins = line.at[i] >= '0' && line.at[i] <= '9' &&
                      (i == 0 || !strchr("0123456789.-_", line.at[i - 1]));
        double value = 0;
        size_t used = begins ? promtext_number(line.at + i, line.len - i, &value) : 0;
        if (!used) {
            i++;
            continue;
        }
        struct oom_text before = {line.at, i};
        i += used;
        if (i < line.len && line.at[i] == ' ')
            i++;
        size_t unit_len = 0;
        double bytes =
            value * oom_text_unit((struct oom_text){line.at + i, line.len - i}, &unit_len);
        i += unit_len;
        if (unit_len && bytes >= 0 && bytes < 1e16)
            oom_text_assign(&n, before, (struct oom_text){line.at + i, line.len - i},
                            (uint64_t)bytes);
    }
    if (!n.reserved && n.reserved_all > n.allocated)
        n.reserved = n.reserved_all - n.allocated;
    ret_numbers->requested = n.requested;
    ret_numbers->free = n.free;
    ret_numbers->reserved = n.reserved;
    ret_numbers->capacity = n.capacity;
}

static const char *const device_phrases[] = {"CUDA out of memory",
                                             "HIP out of memory",
                                             "out of device memory",
                                             "CUDA error: out of memory",
                                             "No available memory for the cache blocks",
                                             "is larger than the available KV cache memory",
                                             "which is larger than the available KV cache memory",
                                             "less than desired GPU memory utilization",
                                             "CUBLAS_STATUS_ALLOC_FAILED",
                                             NULL};

static const char *const host_phrases[] = {"DefaultCPUAllocator: can't allocate memory",
                                           "out of host memory",
                                           "std::bad_alloc",
                                           "Cannot allocate memory",
                                           "MemoryError",
                                           NULL};

bool oom_parse(const char *text, size_t len, struct oom_numbers *ret_numbers)
{
    struct oom_text log = oom_cut_log(text, len), line = {0};
    struct oom_numbers n = {0};
    n.found = oom_last_line(log, device_phrases, &line);
    if (!n.found)
        n.found = n.host = oom_last_line(log, host_phrases, &line);
    if (!n.found)
        return false;
    read_numbers(line, &n);
    n.no_kv = !n.host && (oom_find(line, "for the cache blocks") ||
                          oom_find(line, "larger than the available KV cache memory"));
    *ret_numbers = n;
    return true;
}
