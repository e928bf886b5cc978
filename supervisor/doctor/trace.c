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

#include "supervisor/doctor/level.h"
#include "supervisor/doctor/loud.h"

#define PREFIX_MOST  140 /* bytes in which a prefix names its process */
#define BURST_LINES  400 /* exceptions of one failure are not farther apart */
#define IGNORE_LINES 12
#define SAID_LEAST   8 /* bytes of a message that tell it from others */
#define FRAME_PARTS  3 /* of a path outside of packages that are kept */
#define FRAME_LINES  4 /* from a frame to what it raised: its code, its marks */
#define WORDS_LEAST  4 /* letters of a line that says something */
#define FOLLOW_LINES 6 /* of a chain of causes or of a message that are added */

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

void doctor_trace_loud(struct doctor_trace *t, uint64_t at, const char *line, size_t len, bool weak)
{
    if ((t->loud_line && (weak || !t->loud_weak)) || at <= t->ignored_until ||
        !doctor_loud_complains(line, len))
        return;
    t->loud_line = at;
    t->loud_weak = weak;
    doctor_trace_copy(line, len, t->loud, sizeof(t->loud));
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

/* Whether a line may take the place of what the process said before: not when no entry knows it and
 * it is raised from what one does know, or repeats it. */
static bool supersedes(const struct trace_process *p, const char *line, size_t len,
                       uint32_t signature)
{
    if (doctor_level_echo(line, len))
        return false;
    return signature != TRACE_NONE || p->signature == TRACE_NONE ||
           !(p->chained || repeats(line, len, p->text));
}

/* Whether a line says how something failed, and not in what Python ignores. */
static bool says_failure(const struct doctor_trace *t, uint64_t at, const char *line, size_t len)
{
    return at > t->ignored_until && !doctor_level_mild(line, len) &&
           (doctor_level_raises(line, len) || doctor_trace_raised(t, line, len));
}

struct trace_process *doctor_trace_from(struct doctor_trace *t, uint64_t at, const char *line,
                                        size_t len, struct trace_process *ret_outer)
{
    uint64_t key = process_of(line, len);
    const struct trace_frames *f = frames_of(t, key, false);
    for (uint32_t i = 0; i < t->count; i++) {
        struct trace_process *p = &t->process[i];
        if (p->key != key || !p->chained || p->signature == TRACE_NONE)
            continue;
        if (!says_failure(t, at, line, len) || doctor_level_echo(line, len))
            return NULL;
        *ret_outer = (struct trace_process){.key = key, .signature = TRACE_NONE};
        if (f)
            ret_outer->where = f->where;
        doctor_trace_copy(line, len, ret_outer->text, sizeof(ret_outer->text));
        return p;
    }
    return NULL;
}

void doctor_trace_note(struct doctor_trace *t, uint64_t at, const char *line, size_t len,
                       uint32_t signature)
{
    if (memmem(line, len, "Exception ignored in", 20))
        t->ignored_until = at + IGNORE_LINES;
    if (!says_failure(t, at, line, len))
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
        p->echo_line = doctor_level_echo(line, len) ? at : p->echo_line;
        return;
    }
    p->last_line = at;
    p->signature = signature;
    p->chained = false;
    p->plain = doctor_level_quotes(line, len) ||
               (doctor_level_plain(line, len) && !doctor_trace_raised(t, line, len));
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

bool doctor_trace_raised(const struct doctor_trace *t, const char *line, size_t len)
{
    return t->frame_left > 0 && doctor_level_class(line, len);
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

void doctor_trace_wraps(struct doctor_trace *t, const char *line, size_t len)
{
    uint64_t key = process_of(line, len);
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->process[i].key == key)
            t->process[i].chained = t->process[i].echo_line < t->process[i].last_line;
    }
}

const struct trace_process *doctor_trace_first(const struct doctor_trace *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (!doctor_level_echo(t->process[i].text, strlen(t->process[i].text)))
            return &t->process[i];
    }
    return t->count > 0 ? &t->process[0] : NULL;
}
