/*
 * The reading side of the flight recorder, for evenkeeld's post-mortems
 * (supervisor/servers/postmortem_keep.c). First the head and the places of the rings are checked
 * against the size of the file, then each record against its own sum. A record counts when its
 * number belongs to its place and is not older than one turn of the ring; anything else that is not
 * all zeros counts as torn.
 */
#include "common/recorder_read.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/file.h"

#define COUNT_MOST (1u << 16) /* records of a ring */

static int check_head(const struct ek_recorder_head *h, struct ek_fault *fault)
{
    if (memcmp(h->magic, EK_RECORDER_MAGIC, sizeof(h->magic)) != 0)
        return ek_fault_set(fault, "", "it is no flight recorder's file");
    if (h->order != EK_RECORDER_ORDER)
        return ek_fault_set(fault, "", "it is of a machine with another order of bytes");
    if (h->version != EK_RECORDER_VERSION)
        return ek_fault_set(fault, "", "it has version %u, this program reads %u", h->version,
                            EK_RECORDER_VERSION);
    if (h->sum != ek_recorder_sum(h, offsetof(struct ek_recorder_head, sum), SIZE_MAX))
        return ek_fault_set(fault, "", "its head is damaged");
    return 0;
}

/* Whether a ring with records of this size lies in a file of so many bytes. */
static int check_ring(const struct ek_recorder_ring *g, const char *name, size_t record, size_t len,
                      struct ek_fault *fault)
{
    if (g->record_bytes != record)
        return ek_fault_set(fault, "", "its %s have %u bytes each instead of %zu", name,
                            g->record_bytes, record);
    if (g->count == 0 || g->count > COUNT_MOST || g->offset < sizeof(struct ek_recorder_head) ||
        g->offset > len || (len - g->offset) / record < g->count)
        return ek_fault_set(fault, "", "its %s (%u at %u) are not within its %zu bytes", name,
                            g->count, g->offset, len);
    return 0;
}

/* The number of the record at a place, 0 if there is none that is whole. */
static uint64_t recorder_read_number_at(const char *ring, const struct ek_recorder_ring *g,
                                        uint32_t place)
{
    char record[sizeof(struct ek_recorder_step)];
    uint64_t number, sum;
    memcpy(record, ring + (size_t)place * g->record_bytes, g->record_bytes);
    memcpy(&number, record, sizeof(number));
    memcpy(&sum, record + sizeof(number), sizeof(sum));
    if (number == 0 || (number - 1) % g->count != place ||
        sum != ek_recorder_sum(record, g->record_bytes, sizeof(number)))
        return 0;
    return number;
}

static bool is_empty(const char *ring, const struct ek_recorder_ring *g, uint32_t place)
{
    const char *record = ring + (size_t)place * g->record_bytes;
    for (uint32_t i = 0; i < g->record_bytes; i++)
        if (record[i])
            return false;
    return true;
}

/* Copies the records that are whole, the oldest first, to memory for all of the ring. */
static uint32_t take_ring(const char *ring, const struct ek_recorder_ring *g, char *to,
                          uint32_t *torn)
{
    uint64_t newest = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        uint64_t number = recorder_read_number_at(ring, g, i);
        newest = number > newest ? number : newest;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t place = (uint32_t)((newest + i) % g->count); /* behind the newest is the oldest */
        uint64_t number = recorder_read_number_at(ring, g, place);
        if (number > 0 && newest - number < g->count) {
            memcpy(to + (size_t)n++ * g->record_bytes, ring + (size_t)place * g->record_bytes,
                   g->record_bytes);
        } else if (!is_empty(ring, g, place)) {
            (*torn)++;
        }
    }
    return n;
}

int ek_recorded_parse(const void *data, size_t len, struct ek_recorded *ret, struct ek_fault *fault)
{
    struct ek_recorded r = {0};
    const char *at = data;
    if (len < sizeof(r.head))
        return ek_fault_set(fault, "", "it has %zu bytes, less than a head", len);
    memcpy(&r.head, at, sizeof(r.head));
    const struct ek_recorder_head *h = &r.head;
    int e = check_head(h, fault);
    if (e == 0)
        e = check_ring(&h->begun, "begun steps", sizeof(*r.begun), len, fault);
    if (e == 0)
        e = check_ring(&h->steps, "steps", sizeof(*r.steps), len, fault);
    if (e == 0)
        e = check_ring(&h->requests, "requests", sizeof(*r.requests), len, fault);
    if (e < 0)
        return e;
    r.begun = calloc(h->begun.count, sizeof(*r.begun));
    r.steps = calloc(h->steps.count, sizeof(*r.steps));
    r.requests = calloc(h->requests.count, sizeof(*r.requests));
    if (!r.begun || !r.steps || !r.requests) {
        ek_recorded_done(&r);
        return -ENOMEM;
    }
    r.begun_count = take_ring(at + h->begun.offset, &h->begun, (char *)r.begun, &r.torn);
    r.step_count = take_ring(at + h->steps.offset, &h->steps, (char *)r.steps, &r.torn);
    r.request_count = take_ring(at + h->requests.offset, &h->requests, (char *)r.requests, &r.torn);
    *ret = r;
    return 0;
}

void ek_recorded_done(struct ek_recorded *r)
{
    free(r->begun);
    free(r->steps);
    free(r->requests);
    *r = (struct ek_recorded){0};
}

uint64_t ek_recorded_wall_us(const struct ek_recorded *r, uint64_t at_us)
{
    return r->head.started_wall_us + (at_us - r->head.started_us);
}

int ek_recorded_open(const char *path, int64_t pid)
{
    struct ek_recorder_head h;
    int fd = ek_file_open_regular(path);
    if (fd < 0)
        return fd;
    ssize_t n = pread(fd, &h, sizeof(h), 0);
    int e = n < 0                                                                  ? -errno
            : n < (ssize_t)sizeof(h) || memcmp(h.magic, EK_RECORDER_MAGIC, 8) != 0 ? -EBADMSG
            : h.pid != pid && h.parent != pid                                      ? -ESRCH
                                                                                   : fd;
    if (e < 0)
        close(fd);
    return e;
}

int ek_recorded_read(int fd, struct ek_recorded *ret, struct ek_fault *fault)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size <= 0 || (uint64_t)st.st_size > EK_RECORDED_MOST)
        return ek_fault_set(fault, "", "it has %lld bytes, none to %u are read",
                            (long long)st.st_size, EK_RECORDED_MOST);
    size_t len = (size_t)st.st_size, have = 0;
    char *data = malloc(len);
    if (!data)
        return -ENOMEM;
    ssize_t n = 1;
    while (have < len && (n = pread(fd, data + have, len - have, (off_t)have)) > 0)
        have += (size_t)n;
    int r = n < 0 ? -errno : ek_recorded_parse(data, have, ret, fault);
    free(data);
    return r;
}
