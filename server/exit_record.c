/*
 * Writes exit.json for main.c, which opens it early and writes it on the way out. evenkeeld reads
 * it to tell why a server ended; without it the exit code alone has to do. The old file goes at the
 * start, so that it is not taken for this process's end.
 */
#include "server/exit_record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "server/controller.h"

void exit_record_open(struct exit_record *n, const char *state_dir, const char *control_socket)
{
    *n = (struct exit_record){.started_wall_us = ek_wall_us()};
    const char *dir = state_dir ? state_dir : control_socket;
    const char *slash = state_dir || !control_socket ? NULL : strrchr(control_socket, '/');
    int len = dir ? (int)(slash ? slash - dir : (state_dir ? (int)strlen(dir) : 0)) : 0;
    int r =
        dir ? snprintf(n->path, sizeof(n->path), "%.*s%sexit.json", len, dir, len ? "/" : "") : 0;
    if (r >= (int)sizeof(n->path))
        n->path[0] = '\0';
    if (n->path[0] && unlink(n->path) < 0 && errno != ENOENT)
        ek_log(EK_LOG_WARNING, "Cannot remove the old %s: %s", n->path, strerror(errno));
}

const char *exit_record_class(int code)
{
    switch (code) {
    case EK_EXIT_OK: return "ok";
    case EK_EXIT_USAGE: return "usage";
    case EK_EXIT_CUT: return "deadline_cut";
    case EK_EXIT_INTERNAL: return "internal";
    case EK_EXIT_DEVMEM_START: return "device_oom_start";
    case EK_EXIT_DEVMEM_RUN: return "device_oom_run";
    case EK_EXIT_COMM: return "collective";
    case EK_EXIT_HANG: return "hang";
    case EK_EXIT_NO_FIT: return "no_fit";
    case EK_EXIT_DEVICE: return "device_fault";
    case EK_EXIT_RESTART: return "drained_for_restart";
    case EK_EXIT_CONFIG: return "config";
    case EK_EXIT_HOSTMEM_START: return "host_oom_start";
    case EK_EXIT_LOOP: return "thread_loop";
    }
    return "unknown";
}

void exit_record_write(const struct exit_record *n, int code, const char *why, const char *numbers)
{
    struct ek_buf b = {0};
    uint64_t now = ek_wall_us();
    if (!n->path[0])
        return;
    (void)ek_buf_printf(&b, "{\"code\":%d,\"class\":\"%s\",\"why\":\"", code,
                        exit_record_class(code));
    (void)ek_buf_json(&b, why, strlen(why));
    (void)ek_buf_puts(&b, "\"");
    if (n->started_by_mpi)
        (void)ek_buf_printf(&b, ",\"launcher\":%ld", (long)getppid());
    (void)ek_buf_printf(&b, ",\"pid\":%ld,\"started\":%.3f,\"ended\":%.3f,\"numbers\":{%s}}\n",
                        (long)getpid(), (double)n->started_wall_us / 1e6, (double)now / 1e6,
                        numbers);
    int r = ek_buf_ok(&b) ? ek_file_replace(n->path, b.data, b.len, 0644, EK_FILE_PLAIN) : -ENOMEM;
    if (r == 0 && controller_uid() != (uid_t)-1)
        (void)chmod(n->path, 0644); /* whatever the umask; else the exit code has to do */
    if (r < 0)
        ek_log(EK_LOG_WARNING, "Cannot write %s: %s", n->path, ek_strerror(r));
    ek_buf_done(&b);
}
