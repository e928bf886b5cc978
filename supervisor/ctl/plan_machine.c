/*
 * The figures of this machine's CPU for `evenkeelctl plan` (verb_plan.c), where it is asked about
 * the CPU backend: evenkeel-bench measures bandwidth and arithmetic, and the medians of its report
 * become a plan_device. Reading a report is apart from running the program.
 */
#include "supervisor/ctl/plan_machine.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/spawn.h"

#define DEADLINE_S 120.0
#define SAID_MOST  4096

/* Median of a cell in 1/s, 0 where there is none. */
static double plan_cell(const json_t *report, const char *name)
{
    const json_t *rows = json_object_get(report, "rows"), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *is = json_string_value(json_object_get(row, "cell"));
        double value = json_number_value(json_object_get(row, "value"));
        if (is && strcmp(is, name) == 0)
            return value > 0 && value < 1e9 ? value * 1e9 : 0;
    }
    return 0;
}

int plan_machine_read(const json_t *report, struct plan_device *ret_device, struct ek_fault *fault)
{
    const json_t *machine = json_object_get(report, "machine");
    double pairs = plan_cell(report, "machine.peak_bf16"),
           plain = plan_cell(report, "machine.peak");
    struct plan_device d = {.read_bytes_s = plan_cell(report, "machine.read"),
                            .flops = pairs > 0 ? pairs : plain,
                            .flops8 = plan_cell(report, "machine.peak_int8"),
                            .cache_bytes =
                                json_number_value(json_object_get(machine, "last_cache_bytes")),
                            .cache_bytes_s = plan_cell(report, "machine.last_cache"),
                            .own = true};
    if (d.cache_bytes_s <= 0)
        d.cache_bytes = 0;
    if (d.read_bytes_s <= 0 || d.flops <= 0)
        return ek_fault_set(fault, "measure",
                            "evenkeel-bench said nothing of this machine's limits; give "
                            "--bandwidth and --tflops");
    *ret_device = d;
    return 0;
}

int plan_machine_measure(struct plan_device *ret_device, struct ek_fault *fault)
{
    char program[PATH_MAX], path[] = "/tmp/evenkeelctl-plan.XXXXXX";
    struct ek_buf out = {.limit = SAID_MOST}, err = {.limit = SAID_MOST};
    int status = 0;
    if (!spawn_find("evenkeel-bench", program, sizeof(program)))
        return ek_fault_set(fault, "measure",
                            "there is no evenkeel-bench beside evenkeelctl or in $PATH; install "
                            "it, or give --bandwidth and --tflops");
    int fd = mkstemp(path);
    if (fd < 0)
        return ek_fault_set(fault, "measure", "/tmp: %s", strerror(errno));
    (void)close(fd); /* the program writes it by its name */
    char command[] = "kernels", limits[] = "--limits", repeat[] = "--repeat=3", to[] = "--report";
    char *const argv[] = {program, command, limits, repeat, to, path, NULL};
    int r = spawn_read(argv, DEADLINE_S, &out, &err, &status);
    json_t *report = r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0
                         ? json_load_file(path, 0, NULL)
                         : NULL;
    (void)unlink(path);
    if (report)
        r = plan_machine_read(report, ret_device, fault);
    else
        r = ek_fault_set(fault, "measure", "evenkeel-bench could not measure this machine: %.200s",
                         r < 0      ? ek_strerror(r)
                         : err.data ? err.data
                                    : "no report");
    json_decref(report);
    ek_buf_done(&out);
    ek_buf_done(&err);
    return r;
}
