/*
 * Opens, fills and closes a report file, one cell a row, for the bench programs and long tests.
 * tools/report.py makes docs/benchmarks.md from these files; the machine's description comes from
 * /proc, so that figures of two machines are not mistaken for each other's.
 */
#include "tests/bench/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name of the processor without what JSON would have to escape. */
static void cpu_name(char *name, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    snprintf(name, size, "unknown");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        snprintf(name, size, "%s", colon + 2);
        name[strcspn(name, "\n\"\\")] = '\0';
        break;
    }
    if (f)
        (void)fclose(f); /* only read */
}

int report_open(struct report *r, const char *target, const char *path)
{
    const char *commit = getenv("COMMIT");
    char cpu[128];

    *r = (struct report){.file = fopen(path, "we"), .first = true};
    if (!r->file) {
        int code = -errno;
        (void)fprintf(stderr, "%s cannot be written: %s\n", path, strerror(-code));
        return code;
    }
    cpu_name(cpu, sizeof(cpu));
    double load = 0; /* what else the machine had to do: host times are of a shared cache then */
    (void)getloadavg(&load, 1);
    (void)fprintf(r->file,
                  "{\"target\": \"%s\", \"commit\": \"%s\",\n \"machine\": {\"cpu\": \"%s\", "
                  "\"cores\": %ld, \"load\": %.1f},\n \"rows\": [",
                  target, commit && *commit ? commit : "unknown", cpu,
                  sysconf(_SC_NPROCESSORS_ONLN), load);
    return 0;
}

void report_cell(struct report *r, const struct report_cell *c)
{
    (void)fprintf(r->file, "%s\n  {\"cell\": \"%s\", \"value\": %.10g, \"unit\": \"%s\"",
                  r->first ? "" : ",", c->cell, c->value, c->unit);
    if (c->goal)
        (void)fprintf(r->file, ", \"goal\": %s, \"met\": %s", c->goal, c->met ? "true" : "false");
    (void)fprintf(r->file, "}");
    (void)fflush(r->file); /* a program that is ended has told what it knew */
    r->first = false;
}

int report_close(struct report *r)
{
    (void)fprintf(r->file, "\n]}\n");
    bool failed = ferror(r->file) != 0;

    if (fclose(r->file) != 0)
        failed = true;
    r->file = NULL;
    return failed ? -EIO : 0;
}
