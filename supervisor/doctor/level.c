/*
 * How a line says what it says: as an exception, as a complaint, as a remark that a program makes
 * and goes on, or as what follows from another line. Each is told from the line alone; which of a
 * log's lines decides is trace.c's.
 */
#include "supervisor/doctor/level.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "supervisor/doctor/lines.h"

#define PREFIX_MOST 140 /* bytes in which a prefix has its level */
#define PLACES_MOST 16  /* of a line where an exception is looked for: each walks the line */

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* Whether the word that ends at `end` stands where programs write an exception. */
static bool at_place(const char *line, size_t from)
{
    if (from == 0)
        return true;
    char before = line[from - 1];
    if (before != ' ' && before != ']' && before != ')' && before != ':' && before != '\t')
        return false;
    static const char *const code[] = {"raise ", "except ", "File \"", "catch ", "isinstance(",
                                       "def ",   "class ",  "import ", "return "};
    for (size_t i = 0; i < sizeof(code) / sizeof(code[0]); i++) {
        if (memmem(line, from, code[i], strlen(code[i])))
            return false;
    }
    return doctor_line_own(line, from);
}

/* "ValueError: ...", "MemoryError", "torch.OutOfMemoryError('...": the class ends here. */
static const char *find_exception(const char *line, size_t len, const char *word)
{
    size_t n = strlen(word), places = 0;
    for (const char *at = line; (at = memmem(at, len - (size_t)(at - line), word, n)) != NULL;) {
        size_t from = (size_t)(at - line), end = from + n;
        at += n;
        char next = end < len ? line[end] : '\0';
        if (next != ':' && next != '\0' && next != '(')
            continue;
        while (from > 0 && in_name(line[from - 1]))
            from--;
        if (isupper((unsigned char)line[from]) || memchr(line + from, '.', end - from)) {
            if (at_place(line, from))
                return line + from;
            if (++places == PLACES_MOST)
                return NULL;
        }
    }
    return NULL;
}

static bool begins_or_follows(const char *line, size_t len, const char *word)
{
    const char *at = memmem(line, len, word, strlen(word));
    return at && at_place(line, (size_t)(at - line));
}

/* Where its class begins, NULL: the line names none. */
static const char *exception_in(const char *line, size_t len)
{
    static const char *const ends[] = {"Error", "Exception", "Refused", "NotFound"};
    const char *at = NULL;
    for (size_t i = 0; !at && i < sizeof(ends) / sizeof(ends[0]); i++)
        at = find_exception(line, len, ends[i]);
    return at;
}

static bool names_exception(const char *line, size_t len)
{
    return exception_in(line, len) != NULL;
}

/* How Rust, Go and C++ end a program. */
static bool is_abort(const char *line, size_t len)
{
    return begins_or_follows(line, len, "panicked at") || begins_or_follows(line, len, "panic: ") ||
           begins_or_follows(line, len, "Check failed") || begins_or_follows(line, len, "what(): ");
}

/* A line of a program's source, as people paste it beside a log: "except OSError:". A message may
 * begin with such a word, too, and ends otherwise: "export failed: RuntimeError: ...". */
bool doctor_level_source(const char *line, size_t len)
{
    static const char *const opens[] = {
        "except ", "logger.", "logging.", "return ",   "assert ",   "self.assert", "// ",
        "if (",    "fn ",     "pub fn ",  "async fn ", "std::cerr", "export "};
    size_t from = 0;
    while (len > 0 && isspace((unsigned char)line[len - 1]))
        len--;
    while (from < len && (line[from] == ' ' || line[from] == '\t'))
        from++;
    if (from == len || !memchr(":;,{()", line[len - 1], 6))
        return false;
    for (size_t i = 0; i < sizeof(opens) / sizeof(opens[0]); i++) {
        size_t n = strlen(opens[i]);
        if (len - from >= n && memcmp(line + from, opens[i], n) == 0)
            return true;
    }
    return false;
}

/* Whether `key` ends before `at`. */
static bool follows(const char *line, const char *at, const char *key)
{
    size_t n = strlen(key);
    return (size_t)(at - line) >= n && memcmp(at - n, key, n) == 0;
}

/* "level=WARN", not a setting that somebody is told to make ("KELP_LOG=WARN"). */
static bool is_level_field(const char *line, const char *at)
{
    return follows(line, at, "level=") || follows(line, at, "lvl=") ||
           follows(line, at, "severity=");
}

/* "W1127 10:00:00.000000 77 metrics.cc:7]": glog's level of warnings, before its source file. */
static bool is_glog_warning(const char *line, size_t len)
{
    const char *end = len > 6 ? memchr(line, ']', len < PREFIX_MOST ? len : PREFIX_MOST) : NULL;
    if (!end || line[0] != 'W' || line[5] != ' ' || !memmem(line, (size_t)(end - line), ".c", 2))
        return false;
    for (size_t i = 1; i < 5; i++) {
        if (!isdigit((unsigned char)line[i]))
            return false;
    }
    return true;
}

bool doctor_level_warning(const char *line, size_t len)
{
    static const char word[] = "WARN", nccl[] = "NCCL ";
    size_t most = len < PREFIX_MOST ? len : PREFIX_MOST;
    const char *at = line;
    if (memmem(line, most, "level=warn", 10) || is_glog_warning(line, len))
        return true;
    while ((at = memmem(at, most - (size_t)(at - line), word, 4)) != NULL) {
        char before = at > line ? at[-1] : ' ', after = at + 4 < line + len ? at[4] : ' ';
        bool field = memchr(" [", before, 2) || is_level_field(line, at);
        if (field && !follows(line, at, nccl) && memchr(" ]:", after, 3))
            return true;
        at += 4;
    }
    return false;
}

bool doctor_level_raises(const char *line, size_t len)
{
    if (doctor_level_source(line, len))
        return false;
    return names_exception(line, len) || is_abort(line, len) ||
           (begins_or_follows(line, len, "error: ") && !doctor_level_warning(line, len)) ||
           begins_or_follows(line, len, "Fatal Python error") ||
           begins_or_follows(line, len, "fatal error") || begins_or_follows(line, len, "FATAL");
}

/* A word by itself: "DEBUG", not the DEBUG of "NCCL_DEBUG=INFO". */
static bool alone(const char *line, size_t len, const char *at, size_t n)
{
    char after = at + n < line + len ? at[n] : ' ';
    return (at == line || !(in_name(at[-1]) || at[-1] == '=')) && !in_name(after) && after != '=';
}

/* The small word that ends before `end`, or `end`. */
static const char *word_before(const char *line, const char *end)
{
    const char *from = end;
    while (from > line && islower((unsigned char)from[-1]))
        from--;
    return from;
}

bool doctor_level_quotes(const char *line, size_t len)
{
    static const char *const levels[] = {"ERROR", "WARN", "WARNING"};
    const char *at = exception_in(line, len);
    bool level = false;
    for (size_t i = 0; at && !level && i < sizeof(levels) / sizeof(levels[0]); i++) {
        const char *is = memmem(line, (size_t)(at - line), levels[i], strlen(levels[i]));
        level = is && alone(line, len, is, strlen(levels[i]));
    }
    if (!level)
        return false;
    while (at > line && (at[-1] == ' ' || at[-1] == ':'))
        at--;
    const char *last = word_before(line, at);
    return last < at && last > line && last[-1] == ' ' && word_before(line, last - 1) < last - 1;
}

/* "Warning   FailedMount": a level in a column and the reason of an event in the next. */
static bool names_reason(const char *line, size_t len)
{
    static const char level[] = "Warning ";
    const char *at = memmem(line, len, level, sizeof(level) - 1), *end = line + len;
    if (!at)
        return false;
    for (at += sizeof(level) - 1; at < end && *at == ' ';)
        at++;
    return end - at > 1 && at[-2] == ' ' && isupper((unsigned char)at[0]) &&
           islower((unsigned char)at[1]);
}

/* Kubernetes has no level above "Warning" for its events. */
static bool is_event(const char *line, size_t len)
{
    static const char *const from[] = {" kubelet",     "\tkubelet", "default-scheduler",
                                       "-controller ", "{kubelet ", "kernel-monitor",
                                       "  Evicted ",   " BackOff "};
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        if (memmem(line, len, from[i], strlen(from[i])))
            return true;
    }
    return names_reason(line, len);
}

/* "NCCL INFO misc/socket.cc:564 -> 2": the way up of an error, told at the level of remarks. Not 3
 * out of the sockets and what calls them: NCCL closes its connections so when it ends, nor out of
 * libibverbs, which is not there. */
static bool is_result(const char *line, size_t len)
{
    static const char *const harmless[] = {
        "misc/socket.cc:", "misc/ibvwrap.cc:", "transport/net_socket.cc:", "proxy.cc:"};
    const char *at = memmem(line, len, "NCCL INFO ", 10), *end = line + len;
    const char *file = at ? memmem(at, (size_t)(end - at), ".cc:", 4) : NULL;
    const char *arrow = file ? memmem(file, (size_t)(end - file), " -> ", 4) : NULL;
    if (!arrow)
        return false;
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++) {
        if (strncmp(at + 10, harmless[i], strlen(harmless[i])) == 0)
            return end - arrow < 5 || arrow[4] != '3';
    }
    return true;
}

/* "ras/client_support.cc:160 NCCL WARN Call to bind failed": the monitor of NCCL (RAS) has a socket
 * of its own, which another job of the host may hold; no collective needs it. */
static bool is_monitor(const char *line, size_t len)
{
    const char *warn = memmem(line, len, " NCCL WARN ", 11);
    size_t before = warn ? (size_t)(warn - line) : 0;
    const char *file = warn ? memmem(line, before, "ras/", 4) : NULL;
    return file && (file == line || file[-1] == ' ' || file[-1] == '/');
}

/* A level of one letter: "[TRT] [W] ", or llama.cpp's "0.01.274.655 W srv ". */
static bool is_letter_mild(const char *line, size_t len)
{
    static const char letters[] = "IWVDT";
    size_t at = 0, most = len < PREFIX_MOST ? len : PREFIX_MOST;
    while (at < len && (isdigit((unsigned char)line[at]) || line[at] == '.'))
        at++;
    /* minutes, two digits and twice three: an address seldom looks so */
    if (at > 10 && line[at - 4] == '.' && line[at - 8] == '.' && line[at - 11] == '.' &&
        at + 2 < len && line[at] == ' ' && line[at + 2] == ' ' &&
        memchr(letters, line[at + 1], sizeof(letters) - 1))
        return true;
    for (const char *c = line; (c = memmem(c, most - (size_t)(c - line), "] [", 3)); c += 3) {
        if ((size_t)(c - line) + 5 < len && c[4] == ']' &&
            memchr(letters, c[3], sizeof(letters) - 1))
            return true;
    }
    return false;
}

static bool ends_option(char c)
{
    return c == ' ' || c == ',' || c == '(' || c == ')' || c == '[' || c == ']';
}

/* Whether the words from `at` on lie in one "--kelp" or "kelp_timeout=600". */
static bool in_option(const char *line, size_t len, size_t at, size_t end)
{
    size_t from = at, to = at;
    while (from > 0 && !ends_option(line[from - 1]))
        from--;
    while (to < len && !ends_option(line[to]))
        to++;
    if (at >= end || end > to || to - from < 3)
        return false;
    if (line[from] == '-' && line[from + 1] == '-' && islower((unsigned char)line[from + 2]))
        return true;
    const char *equals = memchr(line + from + 1, '=', to - from - 1);
    return equals && isalnum((unsigned char)equals[-1]) && equals + 1 < line + to;
}

bool doctor_level_option(const char *line, size_t len, size_t at, size_t end)
{
    static const char *const levels[] = {"INFO", "DEBUG"};
    size_t most = len < PREFIX_MOST ? len : PREFIX_MOST;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const char *level = memmem(line, most, levels[i], strlen(levels[i]));
        if (level && alone(line, len, level, strlen(levels[i])))
            return in_option(line, len, at, end);
    }
    return false;
}

bool doctor_level_above(const char *line, size_t len, size_t before)
{
    static const char *const levels[] = {"ERROR", "CRITICAL", "FATAL"};
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const char *is = memmem(line, before, levels[i], strlen(levels[i]));
        if (is && alone(line, len, is, strlen(levels[i])))
            return true;
    }
    return false;
}

/* Whether a line calls itself an error, by a level or by how it begins. */
static bool is_error(const char *line, size_t len)
{
    return doctor_level_above(line, len, len) || (len > 7 && memcmp(line, "error: ", 7) == 0);
}

/* "Kelp was not read: no such file. Proceeding without kelp.", "Kelp disabled: no such file": it
 * says what it does instead. A traceback's own line, which begins with an exception, does not, nor
 * what calls itself an error, unless a request was answered all the same, nor the driver's word
 * that a card has failed. What tries again has nothing instead: if it never succeeds, that was the
 * failure. */
static bool says_it_goes_on(const char *line, size_t len)
{
    static const char answers[] = "Returning a ";
    static const char *const verbs[] = {"Proceeding ", "Continuing ", "Falling back ",
                                        "Ignoring ",   "Skipping ",   "Defaulting "};
    const char *last = NULL;
    for (const char *at = line; (at = memmem(at, len - (size_t)(at - line), ". ", 2)); at += 2)
        last = at + 2;
    const bool disabled = memmem(line, len, " disabled: ", 11) != NULL;
    if ((!last && !disabled) || memmem(line, len, "NVRM: Xid", 9))
        return false; /* as nearly all lines: what follows takes its time */
    const char *exception = exception_in(line, len);
    const bool error = is_error(line, len);
    if (disabled && !exception && !error)
        return true;
    if (!last || exception == line)
        return false;
    size_t left = len - (size_t)(last - line);
    bool says = left >= sizeof(answers) && memcmp(last, answers, sizeof(answers) - 1) == 0;
    for (size_t i = 0; !says && !error && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        size_t n = strlen(verbs[i]);
        says = left > n && memcmp(last, verbs[i], n) == 0;
    }
    return says && !doctor_line_quoted(line, (size_t)(last - line));
}

bool doctor_level_mild(const char *line, size_t len)
{
    static const char *const levels[] = {"WARNING", "INFO", "DEBUG", "Warning", "warning"};
    /* The last stands in a support bundle of a machine without a card. */
    static const char *const spared[] = {"Warning:",
                                         "Skipping ",
                                         "skipping ",
                                         "attention mask is not set and",
                                         "alling back",
                                         "gnoring ",
                                         "Ignore ",
                                         "will be disabled",
                                         ", using CPU instead",
                                         ", loading from source",
                                         "VRAM usage didn't recover",
                                         "Performing Test ",
                                         "<error reading variable",
                                         "failed to find ggml_backend_init in",
                                         "sh: 1: nvidia-smi: not found"};
    size_t most = len < PREFIX_MOST ? len : PREFIX_MOST;
    if (is_monitor(line, len) || is_letter_mild(line, len) || is_glog_warning(line, len) ||
        follows(line, line + len, " - skipping")) /* pip, of an index that does not answer */
        return true;
    if (is_event(line, len) || is_result(line, len) || memmem(line, len, "undefined symbol", 16) ||
        memmem(line, len, "CUDA initialization: ", 21) || memmem(line, most, "INFO: task ", 11))
        return false; /* kernels of the engine are not there, a task of the kernel is stuck */
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const char *at = memmem(line, most, levels[i], strlen(levels[i]));
        if (at && alone(line, len, at, strlen(levels[i])))
            return true;
    }
    for (size_t i = 0; i < sizeof(spared) / sizeof(spared[0]); i++) {
        const char *at = memmem(line, most, spared[i], strlen(spared[i]));
        if (at && !doctor_line_quoted(line, (size_t)(at - line))) /* no word of a command */
            return true;
    }
    return says_it_goes_on(line, len);
}

bool doctor_level_warns(const char *line, size_t len)
{
    size_t most = len < PREFIX_MOST ? len : PREFIX_MOST;
    const char *at = memmem(line, most, "WARN", 4);
    if ((doctor_level_raises(line, len) && !doctor_level_quotes(line, len)) ||
        (at && doctor_level_above(line, len, (size_t)(at - line))))
        return false;
    return doctor_level_warning(line, len) || (at && follows(line, at, " NCCL "));
}

bool doctor_level_plain(const char *line, size_t len)
{
    return !names_exception(line, len) && !is_abort(line, len);
}

/* "xoscar.errors.ServerClosed: ...", "subprocess.TimeoutExpired: ...": modules, then a class. */
static bool names_class(const char *word, size_t len)
{
    size_t last = 0, dots = 0, small = 0;
    for (size_t i = 0; i < len; i++) {
        if (!in_name(word[i]))
            return false;
        dots += word[i] == '.';
        last = word[i] == '.' ? i + 1 : last;
    }
    for (size_t i = last; i < len; i++)
        small += islower((unsigned char)word[i]) != 0;
    return dots > 0 && islower((unsigned char)word[0]) && last < len &&
           isupper((unsigned char)word[last]) && small > 0;
}

bool doctor_level_class(const char *line, size_t len)
{
    for (const char *colon = memmem(line, len, ": ", 2); colon;
         colon = memmem(colon + 2, (size_t)(line + len - colon - 2), ": ", 2)) {
        const char *from = colon;
        while (from > line && in_name(from[-1]))
            from--;
        if (from < colon && (from == line || from[-1] == ' ') &&
            names_class(from, (size_t)(colon - from)))
            return true;
    }
    return false;
}

/* What follows when another process, thread or task has ended, and how a launcher ends whose child
 * did; it explains nothing that came before. */
bool doctor_level_echo(const char *line, size_t len)
{
    static const char *const words[] = {"CancelledError",    "EOFError",
                                        "BrokenPipeError",   "SystemExit",
                                        "KeyboardInterrupt", "ExceptionGroup:",
                                        "ZMQError",          "CalledProcessError",
                                        "ActorDiedError",    "ChildFailedError",
                                        "RayTaskError(",     "KeyError: '/mp-",
                                        "KeyError: '/psm_",  "InterruptedException",
                                        "NoSuchProcess"};
    /* text-generation-launcher's enum LauncherError, which is all that its last line says. */
    static const char *const launcher[] = {"Error: ShardCannotStart", "Error: ShardFailed",
                                           "Error: ShardDisconnected", "Error: WebserverFailed"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (memmem(line, len, words[i], strlen(words[i])))
            return true;
    }
    for (size_t i = 0; i < sizeof(launcher) / sizeof(launcher[0]); i++) {
        if (begins_or_follows(line, len, launcher[i]))
            return true;
    }
    return false;
}
