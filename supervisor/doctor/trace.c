/*
 * Keeps, for each process that writes into a log, the exception that it failed with and the frames
 * around it; scan.c feeds it line by line. The process that raised first is the cause, the others
 * are told as consequences. Within a process a later exception of the same burst takes the place of
 * an earlier one, since the last of a chain is the outermost, unless it only repeats the earlier or
 * says that another process has ended. Of the frames three are kept: the innermost of the engine
 * itself, of an installed package, and of all. Rust tells causes in lines below ("Caused by:"), and
 * it, C++ and Python may begin a message on the next line: these are added to what was said.
 */
#include "supervisor/doctor/trace.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/doctor/lines.h"

#define PREFIX_MOST  140 /* bytes in which a prefix names its process and its level */
#define BURST_LINES  400 /* exceptions of one failure are not farther apart */
#define IGNORE_LINES 12
#define SAID_LEAST   8 /* bytes of a message that tell it from others */
#define FRAME_PARTS  3 /* of a path outside of packages that are kept */
#define FRAME_LINES  4 /* from a frame to what it raised: its code, its marks */
#define WORDS_LEAST  4 /* letters of a line that says something */
#define FOLLOW_LINES 6 /* of a chain of causes or of a message that are added */

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
    size_t n = strlen(word);
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
static bool is_source(const char *line, size_t len)
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

bool doctor_trace_is(const char *line, size_t len)
{
    if (is_source(line, len))
        return false;
    return names_exception(line, len) || is_abort(line, len) ||
           begins_or_follows(line, len, "error: ") ||
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

bool doctor_trace_quotes(const char *line, size_t len)
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

bool doctor_trace_mild(const char *line, size_t len)
{
    static const char *const levels[] = {"WARNING", "INFO", "DEBUG", "Warning", "warning"};
    /* The last stands in a support bundle of a machine without a card. */
    static const char *const spared[] = {"Warning:",
                                         "Skipping ",
                                         "skipping ",
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
    if (is_monitor(line, len) || is_letter_mild(line, len))
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
        if (memmem(line, most, spared[i], strlen(spared[i])))
            return true;
    }
    return false;
}

/* "(EngineCore_DP0 pid=738)", "[rank3]", "TP1]": what stands in the first brackets that name one.
 */
static uint64_t process_of(const char *line, size_t len)
{
    static const char *const marks[] = {"pid=", "[rank", " TP", "Worker"};
    size_t most = len < PREFIX_MOST ? len : PREFIX_MOST;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        const char *at = memmem(line, most, marks[i], strlen(marks[i]));
        if (!at)
            continue;
        for (hash = 1469598103934665603u + i; at < line + len && *at != ')' && *at != ']'; at++)
            hash = (hash ^ (unsigned char)*at) * 1099511628211u;
        return hash;
    }
    return 0;
}

void doctor_trace_copy(const char *text, size_t len, char *out, size_t size)
{
    size_t n = len;
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--; /* not within a character */
    }
    memcpy(out, text, n);
    out[n] = '\0';
}

/* The last "/name/" of a path, NULL: none. */
static const char *last_part(const char *path, const char *end, const char *name)
{
    const char *last = NULL;
    for (const char *at = path; (at = memmem(at, (size_t)(end - at), name, strlen(name))); at++)
        last = at;
    return last;
}

/* "/x/site-packages/vllm/engine/arg_utils.py" and "/home/x/vllm/vllm/engine/arg_utils.py" from the
 * package on; else its last parts. */
static const char *package_of(const char *path, const char *end)
{
    static const char *const roots[] = {"-packages/", "/vllm-workspace/", "/sgl-workspace/"};
    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
        const char *at = memmem(path, (size_t)(end - path), roots[i], strlen(roots[i]));
        if (at)
            return at + strlen(roots[i]);
    }
    const char *own = last_part(path, end, "/vllm/");
    own = own ? own : last_part(path, end, "/sglang/");
    if (own)
        return own + 1;
    const char *from = path;
    int parts = 0;
    for (const char *c = end; c > path && parts < FRAME_PARTS; c--) {
        if (c[-1] == '/' && ++parts <= FRAME_PARTS)
            from = c;
    }
    return from;
}

static bool is_engine(const char *path, size_t len)
{
    static const char *const engines[] = {"vllm/",         "sglang/", "lmdeploy/",
                                          "tensorrt_llm/", "vllm_",   "text_generation_server/",
                                          "xinference/"};
    for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
        if (memmem(path, len, engines[i], strlen(engines[i])))
            return true;
    }
    return false;
}

/* Of what pip installs, which is not the standard library. */
static bool is_package(const char *path, const char *end)
{
    return memmem(path, (size_t)(end - path), "-packages/", 10) != NULL;
}

/* The frames of one process; the oldest entry gives way to a new one when `add`, else NULL. */
static struct trace_frames *frames_of(struct doctor_trace *t, uint64_t key, bool add)
{
    for (uint32_t i = 0; i < TRACE_PROCESSES; i++) {
        if (t->frames[i].used && t->frames[i].key == key)
            return &t->frames[i];
    }
    if (!add)
        return NULL;
    struct trace_frames *f = &t->frames[t->frames_next];
    t->frames_next = (t->frames_next + 1) % TRACE_PROCESSES;
    *f = (struct trace_frames){.key = key, .used = true};
    return f;
}

void doctor_trace_frame(struct doctor_trace *t, const char *line, size_t len)
{
    static const char open[] = "File \"";
    const char *at = memmem(line, len, open, sizeof(open) - 1), *end = line + len;
    const char *from = at ? at + sizeof(open) - 1 : end;
    const char *quote = memchr(from, '"', (size_t)(end - from));
    if (!quote || quote == from)
        return;
    struct trace_where *w = &frames_of(t, process_of(line, (size_t)(at - line)), true)->where;
    from = package_of(from, quote);
    const char *in = memmem(quote, (size_t)(end - quote), ", in ", 5);
    size_t path = (size_t)(quote - from), name = in ? (size_t)(end - in - 5) : 0;
    (void)snprintf(w->inner, sizeof(w->inner), "%.*s:%.*s", path > 80 ? 80 : (int)path, from,
                   name > 36 ? 36 : (int)name, in ? in + 5 : "");
    t->frame_left = FRAME_LINES;
    if (is_package(at, quote))
        memcpy(w->package, w->inner, sizeof(w->package));
    if (is_engine(from, path))
        memcpy(w->own, w->inner, sizeof(w->own));
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
        if (at && doctor_line_own(line, (size_t)(at - line)))
            return true;
    }
    return is_glog_error(line, len) || is_stalled(line, len) || is_silent(line, len);
}

/* A frame of a traceback, or its statement when that names no class of exception ("raise e"). */
static bool is_code(const char *line, size_t len)
{
    const char *at = memmem(line, len, "   raise ", 9);
    return memmem(line, len, "  File \"", 8) || is_source(line, len) ||
           (at && at + 9 < line + len && islower((unsigned char)at[9]));
}

void doctor_trace_loud(struct doctor_trace *t, uint64_t at, const char *line, size_t len, bool weak)
{
    if ((t->loud_line && (weak || !t->loud_weak)) || at <= t->ignored_until ||
        doctor_trace_mild(line, len) || !is_loud(line, len) ||
        memmem(line, len, "Traceback (most", 15) || is_code(line, len))
        return;
    t->loud_line = at;
    t->loud_weak = weak;
    doctor_trace_copy(line, len, t->loud, sizeof(t->loud));
}

/* What follows when another process or task has ended; it explains nothing that came before. */
bool doctor_trace_echo(const char *line, size_t len)
{
    static const char *const words[] = {
        "CancelledError",    "EOFError",         "BrokenPipeError", "SystemExit",
        "KeyboardInterrupt", "ExceptionGroup:",  "ZMQError",        "CalledProcessError",
        "ActorDiedError",    "ChildFailedError", "RayTaskError(",   "KeyError: '/mp-",
        "KeyError: '/psm_"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (memmem(line, len, words[i], strlen(words[i])))
            return true;
    }
    return false;
}

/* "IndexError: Error in model execution (...): list index out of range" after that IndexError. */
static bool repeats(const char *line, size_t len, const char *before)
{
    const char *colon = strstr(before, "Error: "), *said = colon ? colon + 7 : NULL;
    return said && strlen(said) >= SAID_LEAST && memmem(line, len, said, strlen(said));
}

/* "RuntimeError:", "panicked at src/main.rs:7:5:", "RuntimeError: src/state.cc:743": the message is
 * on the next line. */
static bool goes_on(const char *line, size_t len)
{
    while (len > 0 && isdigit((unsigned char)line[len - 1]))
        len--;
    return len > 0 && line[len - 1] == ':';
}

/* Whether a line that no entry knows may take the place of what the process said before. */
static bool supersedes(const struct trace_process *p, const char *line, size_t len,
                       uint32_t signature)
{
    if (doctor_trace_echo(line, len))
        return false;
    return signature != TRACE_NONE || p->signature == TRACE_NONE || !repeats(line, len, p->text);
}

void doctor_trace_note(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                       uint32_t signature)
{
    if (memmem(line, len, "Exception ignored in", 20))
        t->ignored_until = at + IGNORE_LINES;
    if (at <= t->ignored_until || doctor_trace_mild(line, len) ||
        !(doctor_trace_is(line, len) || doctor_trace_raised(t, line, len)))
        return;
    uint64_t key = process_of(line, len);
    uint32_t i = 0;
    while (i < t->count && t->process[i].key != key)
        i++;
    if (i == TRACE_PROCESSES)
        return;
    struct trace_process *p = &t->process[i];
    if (i == t->count) {
        *p = (struct trace_process){.key = key, .first_line = at};
        t->count++;
    } else if (at - p->last_line > BURST_LINES) {
        return; /* a later failure is not the first */
    } else if (!supersedes(p, line, len, signature)) {
        return;
    }
    p->last_line = at;
    p->signature = signature;
    p->plain =
        doctor_trace_quotes(line, len) ||
        (!names_exception(line, len) && !is_abort(line, len) && !doctor_trace_raised(t, line, len));
    struct trace_frames *f = frames_of(t, key, false);
    p->where = f ? f->where : (struct trace_where){.own = ""};
    if (f)
        f->where = (struct trace_where){.own = ""};
    doctor_trace_copy(line, len, p->text, sizeof(p->text));
    t->follows = i;
    t->follow_left = goes_on(line, len) ? FOLLOW_LINES : 0;
}

void doctor_trace_forget_plain(struct doctor_trace *t)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (!t->process[i].plain)
            t->process[kept++] = t->process[i];
    }
    t->count = kept;
    t->follow_left = 0;
    t->loud_line = 0;
    t->loud_weak = false;
}

bool doctor_trace_open(const struct doctor_trace *t)
{
    return t->follow_left > 0 || t->frame_left > 0;
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

bool doctor_trace_raised(const struct doctor_trace *t, const char *line, size_t len)
{
    const char *colon = t->frame_left > 0 ? memmem(line, len, ": ", 2) : NULL;
    while (colon) {
        const char *from = colon;
        while (from > line && in_name(from[-1]))
            from--;
        if (from < colon && (from == line || from[-1] == ' ') &&
            names_class(from, (size_t)(colon - from)))
            return true;
        colon = memmem(colon + 2, (size_t)(line + len - colon - 2), ": ", 2);
    }
    return false;
}

/* Whether a line has words, and is no rule, no frame and no code of a traceback. */
static bool has_words(const char *line, size_t len)
{
    size_t letters = 0;
    for (size_t i = 0; i < len; i++)
        letters += isalpha((unsigned char)line[i]) != 0;
    return letters >= WORDS_LEAST && !memmem(line, len, "File \"", 6) &&
           !memmem(line, len, "Traceback (", 11) && !memmem(line, len, "backtrace", 9);
}

void doctor_trace_follow(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                         uint32_t signature)
{
    if (t->frame_left > 0)
        t->frame_left--;
    if (t->follow_left == 0)
        return;
    t->follow_left--;
    struct trace_process *p = &t->process[t->follows];
    if (t->follows >= t->count || !has_words(line, len))
        return;
    if (signature != TRACE_NONE && p->signature == TRACE_NONE) {
        p->signature = signature;
        p->last_line = at;
    }
    while (len > 0 && *line == ' ') {
        line++;
        len--;
    }
    size_t n = strlen(p->text);
    if (n + 2 < sizeof(p->text)) {
        p->text[n++] = ' ';
        doctor_trace_copy(line, len, p->text + n, sizeof(p->text) - n);
    }
}

void doctor_trace_causes(struct doctor_trace *t, const char *line, size_t len)
{
    if (t->count > 0 && len >= 10 && memmem(line, len, "Caused by:", 10) == line + len - 10)
        t->follow_left = FOLLOW_LINES;
}

const struct trace_process *doctor_trace_first(const struct doctor_trace *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (!doctor_trace_echo(t->process[i].text, strlen(t->process[i].text)))
            return &t->process[i];
    }
    return t->count > 0 ? &t->process[0] : NULL;
}
