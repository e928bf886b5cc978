/*
 * What evenkeeld reads of what others wrote or a crash left: state.json, whose state is saved and
 * read again, which must give the same; or behind a zero byte the exit.json of a server.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "supervisor/io/child.h"
#include "supervisor/io/exit_file.h"
#include "supervisor/io/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PID 7

static char dir[] = "/tmp/evenkeel-fuzz-XXXXXX";

static void leave(void)
{
    static const char *const names[] = {"exit.json", "state.json"};
    char path[64];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static void enter(void)
{
    static bool made;
    if (made)
        return;
    assert(mkdtemp(dir));
    made = true;
    assert(atexit(leave) == 0);
}

static void read_exit(const uint8_t *data, size_t size)
{
    char path[64], why[80];
    struct child_exit e = {.code = -1};
    (void)snprintf(path, sizeof(path), "%s/exit.json", dir);
    FILE *f = fopen(path, "wb");
    assert(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    (void)snprintf(path, sizeof(path), "%s/control.sock", dir);
    exit_file_read(path, PID, &e);
    assert(e.known ? e.code >= 0 && e.code <= 255 : e.code == -1);
    exit_file_why(path, PID, why, sizeof(why));
    assert(memchr(why, '\0', sizeof(why)));
}

static void check_state(const struct state *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const struct state_server *one = &s->at[i];
        assert(memchr(one->name, '\0', sizeof(one->name)) && state_find(s, one->name) == one);
        assert(one->planned.count <= PLANNED_KEPT && one->backoff.exits <= BACKOFF_REMEMBERS);
        assert(one->backoff.next_s >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state s = {0}, again = {0};
    enter();
    if (size > 0 && data[0] == 0) {
        read_exit(data + 1, size - 1);
        return 0;
    }
    int r = state_parse((const char *)data, size, &s);
    assert(r == 0 || r == -EBADMSG);
    if (r < 0)
        return 0;
    check_state(&s);
    assert(state_save(dir, &s) == 0 && state_peek(dir, &again) == 0);
    assert(again.count == s.count);
    for (uint32_t i = 0; i < s.count; i++)
        assert(strcmp(again.at[i].name, s.at[i].name) == 0 &&
               memcmp(again.at[i].value, s.at[i].value, sizeof(s.at[i].value)) == 0 &&
               again.at[i].planned.count == s.at[i].planned.count);
    state_free(&s);
    state_free(&again);
    return 0;
}
