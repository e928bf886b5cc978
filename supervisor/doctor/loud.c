/*
 * Which lines complain without an exception (loud.h): by a level, or by words that say so, unless
 * these count nothing, stand in code, or are a model's answer.
 */
#include "supervisor/doctor/loud.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "supervisor/doctor/level.h"
#include "supervisor/doctor/lines.h"

#define COUNTER_MOST 32 /* of the name of a counter after a word */

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* "E1127 10:00:00.000000 77 rdma_context.cpp:7]", "[E1127 10:00:00.000000007 socket.cpp:7]": the
 * level of glog, where a source file follows it. */
static bool is_glog_error(const char *line, size_t len)
{
    size_t at = len > 0 && line[0] == '[';
    return len > at + 1 && strchr("EF", line[at]) && isdigit((unsigned char)line[at + 1]) &&
           (memmem(line, len, ".cpp:", 5) || memmem(line, len, ".cc:", 4));
}

/* "stalled", where it is no counter ("stalled 0", "stalled requests: 7"). */
static bool is_stalled(const char *line, size_t len)
{
    static const char word[] = "stalled";
    const char *at = memmem(line, len, word, sizeof(word) - 1), *end = line + len;
    if (!at || !doctor_line_own(line, (size_t)(at - line)))
        return false;
    for (at += sizeof(word) - 1; at < end && *at == ' ';)
        at++;
    const char *name = at;
    while (at < end && islower((unsigned char)*at))
        at++;
    size_t n = (size_t)(at - name);
    bool counted = n == 0 || at[-1] == 's' ||
                   (n == 5 && (memcmp(name, "count", 5) == 0 || memcmp(name, "total", 5) == 0));
    while (at < end && (*at == ' ' || *at == ':' || *at == '='))
        at++;
    return !(counted && at < end && isdigit((unsigned char)*at));
}

/* "engine fell silent": a part of the program, not a peer or a client of it. */
static bool is_silent(const char *line, size_t len)
{
    static const char *const parts[] = {"engine ", "ngineCore", "worker ",   "rank ",
                                        "server ", "process ",  "scheduler "};
    const char *at = memmem(line, len, " silent", 7);
    if (!at || !doctor_line_own(line, (size_t)(at - line)))
        return false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (memmem(line, (size_t)(at - line), parts[i], strlen(parts[i])))
            return true;
    }
    return false;
}

/* Whether `name` (what stands between a word and a number) is a counter's: nothing but the rest of
 * the word, or what is counted, with at most one word before it. */
static bool is_counter(const char *name, size_t len)
{
    static const char counted[] =
        " request task job item sample test query call response prompt connection attempt "
        "count total number rate found ";
    size_t words = 0, from = 0;
    while (len > 0 && (name[len - 1] == ' ' || name[len - 1] == '_'))
        len--;
    for (size_t i = 1; i < len; i++) { /* a word begins behind a gap; the rest of a word does not */
        if ((name[i - 1] == ' ' || name[i - 1] == '_') && isalpha((unsigned char)name[i])) {
            words++;
            from = i;
        }
    }
    char last[COUNTER_MOST + 3] = " ";
    size_t n = len - from;
    if (words == 0)
        return len == 0 || (name[0] != ' ' && name[0] != '_');
    for (size_t i = 0; i < n; i++)
        last[i + 1] = (char)tolower((unsigned char)name[from + i]);
    last[n + 1] = ' ';
    bool many = n > 3 && last[n] == 's' && last[n - 1] != 's'; /* of whatever */
    return words <= 2 && (many || strstr(counted, last));
}

/* Whether words of a place or an aim stand in it: "failed on total" is no counter. */
static bool names_place(const char *name, size_t len)
{
    static const char *const words[] = {"rank", "device", "gpu", "node", " on ", " to ", " for "};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i]);
        for (size_t at = 0; at + n <= len; at++) {
            if (strncasecmp(name + at, words[i], n) == 0)
                return true;
        }
    }
    return false;
}

/* "Failed requests  | 0 |", "failures=0": what follows a word makes it a counter that has counted
 * none. Ranks and devices are counted from 0: "failed on rank: 0" says which. */
static bool counts_none(const char *at, const char *end)
{
    const char *word = at;
    while (at < end && at - word < COUNTER_MOST &&
           (isalpha((unsigned char)*at) || *at == '_' || *at == ' '))
        at++;
    const char *sign = at;
    while (sign > word && sign[-1] == ' ')
        sign--;
    size_t name = (size_t)(sign - word);
    at = sign;
    while (at < end && memchr(":=| ", *at, 4))
        at++;
    if (at == sign || at == end || *at != '0' || !is_counter(word, name) || names_place(word, name))
        return false;
    for (at++; at < end && *at == ' ';)
        at++;
    return at == end || memchr(",;|)", *at, 4);
}

/* Whether `at` begins a line, a text in quotes, or what is said behind a mark: "Sorry, I cannot".
 */
static bool begins_saying(const char *line, const char *at)
{
    if (at == line || at[-1] == '"')
        return true;
    return at - line > 1 && at[-1] == ' ' && !isalnum((unsigned char)at[-2]);
}

/* "I cannot tell", "I'm unable to": what a model has answered. No program speaks of itself so; one
 * may count so ("Stage I failed"), and may name what was said in an error of its own. */
static bool is_first_person(const char *line, size_t len)
{
    const char *end = line + len;
    for (const char *at = line; (at = memchr(at, 'I', (size_t)(end - at))); at++) {
        if (begins_saying(line, at) && !doctor_level_above(line, len, (size_t)(at - line)) &&
            end - at > 3 &&
            ((at[1] == ' ' && islower((unsigned char)at[2])) || memcmp(at, "I'm ", 4) == 0))
            return true;
    }
    return false;
}

/* Where a program complains: by its level, or in words that say so. */
static bool is_loud(const char *line, size_t len)
{
    static const char *const words[] = {"ERROR",
                                        "CRITICAL",
                                        "WARN ",
                                        "failed",
                                        "Failed",
                                        "error",
                                        "ASSERT",
                                        "Aborted",
                                        " fault",
                                        "egfault",
                                        "Killed",
                                        "Error",
                                        "annot ",
                                        "nable to ",
                                        "not found",
                                        "refused",
                                        "ould not ",
                                        "ailure",
                                        "timed out",
                                        "got stuck",
                                        "page fault",
                                        "nvalid ",
                                        "ismatch",
                                        "<title>50",
                                        "exceeded the",
                                        "exceeded max",
                                        "ot permitted",
                                        "has no attribute",
                                        "required positional"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *at = memmem(line, len, words[i], strlen(words[i]));
        if (at && doctor_line_own(line, (size_t)(at - line)) &&
            !counts_none(at + strlen(words[i]), line + len))
            return true;
    }
    return is_glog_error(line, len) || is_stalled(line, len) || is_silent(line, len);
}

/* "throw std::runtime_error(strerror(errno));", "failed += 1": a statement of a program. */
static bool is_statement(const char *line, size_t len)
{
    size_t from = 0, name = 0;
    while (len > 0 && line[len - 1] == ' ')
        len--;
    while (from < len && line[from] == ' ')
        from++;
    for (name = from; name < len && in_name(line[name]);)
        name++;
    if (len - name > 4 &&
        (memcmp(line + name, " += ", 4) == 0 || memcmp(line + name, " -= ", 4) == 0))
        return true;
    const char *call = memchr(line, '(', len); /* a space before it makes it prose */
    return len > 2 && memcmp(line + len - 2, ");", 2) == 0 && isalpha((unsigned char)line[from]) &&
           call && call > line && in_name(call[-1]) && !memmem(line, len, "rror: ", 6);
}

/* A frame of a traceback, or its statement when that names no class of exception ("raise e"). */
static bool is_code(const char *line, size_t len)
{
    const char *at = memmem(line, len, "   raise ", 9);
    return memmem(line, len, "  File \"", 8) || doctor_level_source(line, len) ||
           is_statement(line, len) || (at && at + 9 < line + len && islower((unsigned char)at[9]));
}

bool doctor_loud_complains(const char *line, size_t len)
{
    return !doctor_level_mild(line, len) && is_loud(line, len) && !is_first_person(line, len) &&
           !memmem(line, len, "Traceback (most", 15) && !is_code(line, len);
}
