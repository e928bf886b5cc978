/*
 * Finds the forms of products (start_forms.h). The file is in the state directory: --state-dir,
 * else where cached prefixes are kept, else the folder of the control socket; its name has the tier
 * and the model's (and under MPI the node's number), so that a server that goes back to another
 * model or tier finds what it had. The folder is locked meanwhile. What is not taken is set aside
 * as FILE.old. Called by start.c, on the starter's thread.
 */
#include "server/start_forms.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "kernels/backend.h"
#include "server/forms_file.h"
#include "server/model/model.h"
#include "server/options.h"
#include "server/stack.h"

#define SHAPES_SAID 6u        /* in a line of the log */
#define LOCK_TRIES  500u      /* 10 s in all; a measurement takes less than one */
#define LOCK_TRY_NS 20000000L /* 20 ms */

/* The folder of a path, with its slash; "" in the current one. False where there is no path. */
static bool folder_of(const char *path, char *ret_dir, size_t size)
{
    const char *slash = path ? strrchr(path, '/') : NULL;

    return path &&
           snprintf(ret_dir, size, "%.*s", slash ? (int)(slash + 1 - path) : 0, path) < (int)size;
}

/* "" = there is no place. */
static void forms_path(const struct stack *s, char ret_path[PATH_MAX])
{
    const struct options *o = s->o;
    const char *name = strrchr(s->model->dir, '/');
    char dir[PATH_MAX - 288] = "", node[24] = "";
    bool found = o->state_dir && snprintf(dir, sizeof(dir), "%s/", o->state_dir) < (int)sizeof(dir);

    found = found || folder_of(o->prefix_file, dir, sizeof(dir)) ||
            folder_of(o->control_socket, dir, sizeof(dir));
    ret_path[0] = '\0';
    if (o->nnodes > 1) /* their folder may be one, on a disk that they share */
        (void)snprintf(node, sizeof(node), ".node%u", (uint32_t)o->node_rank);
    name = name && name[1] ? name + 1 : s->model->dir;
    if (found)
        (void)snprintf(ret_path, PATH_MAX, "%scpu-forms.%s.%.200s%s", dir, s->info.isa, name, node);
    for (char *at = ret_path + strlen(dir); found && *at; at++)
        if (*at == '/' || (unsigned char)*at <= ' ')
            *at = '_';
}

/* Locks the file's folder, so that of servers that start together one measures and the others take
 * what it found. A server that does not get the lock goes on without it. A descriptor to be closed,
 * or -1. */
static int forms_lock(const char *path)
{
    char dir[PATH_MAX];
    int fd = -1;

    if (path[0] && folder_of(path, dir, sizeof(dir)))
        fd = open(dir[0] ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (uint32_t i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            return fd;
        (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_TRY_NS}, NULL);
    }
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

static void forms_read(const char *path, const struct forms_about *about, struct ek_forms *forms)
{
    struct ek_buf text = {0};
    char aside[PATH_MAX + 8];

    int r = path[0] ? ek_file_read_regular(path, FORMS_FILE_MOST, &text) : -ENOENT;
    const char *why = r == 0 ? forms_file_read(text.data ? text.data : "", text.len, about, forms)
                             : "not to be read";
    ek_buf_done(&text);
    if (!why || r == -ENOENT)
        return;
    (void)snprintf(aside, sizeof(aside), "%s.old", path);
    const bool set = rename(path, aside) == 0;
    ek_log(EK_LOG_WARNING, "The forms of products in %s are not used, as it is %s%s%s: measuring",
           path, why, set ? "; it is now " : "", set ? aside : "");
}

/* Kept, or why not. */
static void forms_keep(const char *path, const struct forms_about *about,
                       const struct ek_forms *forms, char *ret_note, size_t size)
{
    struct ek_buf text = {0};

    if (!path[0]) {
        (void)snprintf(ret_note, size, "not kept: there is no --state-dir");
        return;
    }
    int r = forms_file_write(about, forms, &text);
    if (r == 0)
        r = ek_file_replace(path, text.data, text.len, 0644, EK_FILE_PLAIN);
    ek_buf_done(&text);
    if (r < 0)
        ek_log(EK_LOG_WARNING,
               "The forms of products cannot be kept in %s: %s; the next start measures again and "
               "may choose others, which changes the last bits of answers",
               path, ek_strerror(r));
    (void)snprintf(ret_note, size, "%s %s", r == 0 ? "kept in" : "not kept in", path);
}

/* "5 shapes, as tier avx512vnni but int8 9728 x 896 as avx512 (1.32 times as fast)". */
static void start_forms_describe(const struct stack *s, struct ek_buf *out)
{
    const struct ek_forms *forms = &s->forms;
    uint32_t said = 0, others = 0;

    for (uint32_t i = 0; i < forms->used; i++)
        others += strcmp(forms->form[i].name, s->info.isa) != 0;
    (void)ek_buf_printf(out, "%u shape%s of weights %sas tier %s", forms->used,
                        forms->used == 1 ? "" : "s", others == 0 ? "all " : "", s->info.isa);
    for (uint32_t i = 0; i < forms->used && said < SHAPES_SAID; i++) {
        const struct ek_form *f = &forms->form[i];
        if (strcmp(f->name, s->info.isa) == 0)
            continue;
        (void)ek_buf_printf(out, "%s %s %u x %u as %s (%.2f times as fast)",
                            said == 0 ? " but" : ",", model_dtype_name((enum ek_dtype)f->dtype),
                            f->rows, f->cols, f->name, f->times);
        said++;
    }
    if (others > said)
        (void)ek_buf_printf(out, " and %u more", others - said);
}

static void say_forms(const struct stack *s, bool measured, uint64_t us, const char *note)
{
    struct ek_buf text = {0};

    start_forms_describe(s, &text);
    if (measured)
        (void)ek_buf_printf(&text, ", measured in %.0f ms", (double)us / 1e3);
    (void)ek_buf_printf(&text, "; %s", note);
    if (ek_buf_ok(&text))
        ek_log(EK_LOG_INFO, "Products: %s", text.data);
    ek_buf_done(&text);
}

int forms_prepare(struct stack *s, struct ek_fault *fault)
{
    const struct forms_about about = {.cpu = s->info.machine, .tier = s->info.isa};
    char path[PATH_MAX], note[PATH_MAX + 64];

    if (!s->backend->choose || !s->info.machine[0] || strcmp(s->o->cpu_forms, "tier") == 0)
        return 0;
    forms_path(s, path);
    const int lock = forms_lock(path);
    forms_read(path, &about, &s->forms);
    const uint64_t begin = ek_now_us();
    int r = s->backend->choose(&s->open, &s->model->graph, &s->forms, fault);
    const uint64_t us = ek_now_us() - begin;
    const bool measured = s->forms.measured > 0;
    (void)snprintf(note, sizeof(note), "as kept in %s", path);
    if (r == 0 && measured)
        forms_keep(path, &about, &s->forms, note, sizeof(note));
    if (lock >= 0)
        (void)close(lock);
    if (r < 0)
        return r;
    s->open.forms = &s->forms;
    if (s->forms.used > 0)
        say_forms(s, measured, us, note);
    return 0;
}
