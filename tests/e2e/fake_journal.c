/*
 * A journal for tests, preloaded: what sd-journal reads comes from the file FAKE_JOURNAL, one entry
 * a line: "UNIT message". Lines of "kernel" are the kernel's. Only entries that the matches asked
 * for are given.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-journal.h>

struct sd_journal {
    FILE *f;
    char unit[300], line[4096], message[4200];
    int kernel;
};

int sd_journal_open(sd_journal **ret, int flags)
{
    const char *path = getenv("FAKE_JOURNAL");
    struct sd_journal *j = calloc(1, sizeof(*j));
    (void)flags;
    j->f = path ? fopen(path, "re") : NULL;
    if (!j->f) {
        free(j);
        return -ENOENT;
    }
    *ret = j;
    return 0;
}

int sd_journal_add_match(sd_journal *j, const void *data, size_t size)
{
    const char *match = data;
    (void)size;
    if (strncmp(match, "_SYSTEMD_UNIT=", 14) == 0)
        (void)snprintf(j->unit, sizeof(j->unit), "%s ", match + 14);
    j->kernel |= strcmp(match, "_TRANSPORT=kernel") == 0;
    return 0;
}

int sd_journal_add_disjunction(sd_journal *j)
{
    (void)j;
    return 0;
}

int sd_journal_next(sd_journal *j)
{
    while (fgets(j->line, sizeof(j->line), j->f)) {
        j->line[strcspn(j->line, "\n")] = '\0';
        if (strncmp(j->line, j->unit, strlen(j->unit)) == 0 ||
            (j->kernel && strncmp(j->line, "kernel ", 7) == 0))
            return 1;
    }
    return 0;
}

int sd_journal_get_data(sd_journal *j, const char *field, const void **ret, size_t *ret_len)
{
    if (strcmp(field, "_SYSTEMD_UNIT") == 0 && strncmp(j->line, "kernel ", 7) == 0)
        return -ENOENT;
    int n = snprintf(j->message, sizeof(j->message), "MESSAGE=%s", strchr(j->line, ' ') + 1);
    *ret = j->message;
    *ret_len = (size_t)n;
    return 0;
}

void sd_journal_close(sd_journal *j)
{
    (void)fclose(j->f);
    free(j);
}
