/*
 * The writing side of the flight recorder: server/start_load.c opens it, the engine thread writes
 * through server/engine/record.c. Writing is a copy into mapped memory, without a system call but
 * for a look at our memory once a second. The file is complete before it gets its name, and all its
 * pages are allocated then, so that a full disk cannot end the process by SIGBUS in the middle of a
 * step.
 */
#include "common/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"

#define HEAD_BYTES  256u /* the rings begin at lines of the cache */
#define SUM_PRIME   0x9E3779B97F4A7C15ull
#define NUMBER_SKIP offsetof(struct ek_recorder_step, sum)
#define FRESH       EK_RECORDER_FILE ".new"
#define PATH_BYTES  512u

_Static_assert(sizeof(struct ek_recorder_head) <= HEAD_BYTES, "the head has its place");
_Static_assert(sizeof(struct ek_recorder_step) == 128, "two lines of the cache");
_Static_assert(sizeof(struct ek_recorder_request) == 64, "one line of the cache");
_Static_assert(offsetof(struct ek_recorder_step, number) == 0 &&
                   offsetof(struct ek_recorder_request, number) == 0 &&
                   offsetof(struct ek_recorder_request, sum) == NUMBER_SKIP,
               "records begin alike");

struct ring {
    char *at;
    uint32_t bytes, count;
    uint64_t next;
};

struct ek_recorder {
    char *map;
    size_t map_bytes;
    struct ring begun, steps, requests;
    int statm; /* what the kernel says of our memory, -1 = nothing */
    uint32_t page_kib, resident_mib;
    uint64_t looked_us;
};

uint64_t ek_recorder_sum(const void *record, size_t bytes, size_t skip)
{
    const char *at = record;
    uint64_t sum = bytes;
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, at + i, sizeof(word));
        if (i != skip)
            sum = (sum ^ word) * SUM_PRIME;
        sum ^= sum >> 29;
    }
    return sum;
}

static void fill_head(struct ek_recorder_head *h, const struct ek_recorder_about *about)
{
    const uint32_t step = sizeof(struct ek_recorder_step);
    const uint32_t request = sizeof(struct ek_recorder_request);
    *h = (struct ek_recorder_head){.version = EK_RECORDER_VERSION,
                                   .order = EK_RECORDER_ORDER,
                                   .head_bytes = HEAD_BYTES,
                                   .pid = getpid(),
                                   .parent = getppid(),
                                   .started_us = ek_now_us(),
                                   .started_wall_us = ek_wall_us(),
                                   .about = *about};
    memcpy(h->magic, EK_RECORDER_MAGIC, sizeof(h->magic));
    h->begun = (struct ek_recorder_ring){HEAD_BYTES, step, EK_RECORDER_BEGUN, 0};
    h->steps = (struct ek_recorder_ring){HEAD_BYTES + step * EK_RECORDER_BEGUN, step,
                                         EK_RECORDER_STEPS, 0};
    h->requests = (struct ek_recorder_ring){h->steps.offset + step * EK_RECORDER_STEPS, request,
                                            EK_RECORDER_REQUESTS, 0};
    h->sum = ek_recorder_sum(h, offsetof(struct ek_recorder_head, sum), SIZE_MAX);
}

static struct ring ring_at(char *map, const struct ek_recorder_ring *r)
{
    return (struct ring){
        .at = map + r->offset, .bytes = r->record_bytes, .count = r->count, .next = 1};
}

/* Maps the file, whose memory is taken now: a full disk is no SIGBUS later. */
static int map_file(struct ek_recorder *r, int fd, const struct ek_recorder_about *about)
{
    struct ek_recorder_head h;
    fill_head(&h, about);
    size_t bytes = h.requests.offset + (size_t)h.requests.record_bytes * h.requests.count;
    int e = posix_fallocate(fd, 0, (off_t)bytes);
    if (e != 0)
        return -e;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    r->map = map;
    r->map_bytes = bytes;
    memcpy(r->map, &h, sizeof(h));
    r->begun = ring_at(r->map, &h.begun);
    r->steps = ring_at(r->map, &h.steps);
    r->requests = ring_at(r->map, &h.requests);
    return 0;
}

/* Under its own name only when it is whole; the one before is kept. */
static int make_file(struct ek_recorder *r, const char *socket,
                     const struct ek_recorder_about *about)
{
    char file[PATH_BYTES], before[PATH_BYTES], fresh[PATH_BYTES];
    if (strlen(socket) + sizeof(EK_RECORDER_BEFORE) > PATH_BYTES)
        return -ENAMETOOLONG;
    (void)snprintf(file, sizeof(file), "%s" EK_RECORDER_FILE, socket);
    (void)snprintf(before, sizeof(before), "%s" EK_RECORDER_BEFORE, socket);
    (void)snprintf(fresh, sizeof(fresh), "%s" FRESH, socket);
    (void)unlink(fresh); /* of a start that was killed */
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int e = map_file(r, fd, about);
    close(fd);
    /* What is not our file may not be moved (Landlock), but removed: the next line would, too. */
    if (e == 0 && rename(file, before) < 0)
        (void)unlink(file);
    if (e == 0 && rename(fresh, file) < 0)
        e = -errno;
    if (e < 0)
        (void)unlink(fresh);
    return e;
}

int ek_recorder_open(const char *socket, const struct ek_recorder_about *about,
                     struct ek_recorder **ret_recorder)
{
    struct ek_recorder *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->statm = -1;
    int e = make_file(r, socket, about);
    if (e < 0) {
        ek_recorder_close(r);
        return e;
    }
    r->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC); /* without it memory is unknown */
    long page = sysconf(_SC_PAGESIZE);
    r->page_kib = page > 1024 ? (uint32_t)(page / 1024) : 4;
    *ret_recorder = r;
    return 0;
}

void ek_recorder_close(struct ek_recorder *r)
{
    if (!r)
        return;
    if (r->map)
        (void)munmap(r->map, r->map_bytes); /* cannot fail for what mmap() gave */
    if (r->statm >= 0)
        close(r->statm);
    free(r);
}

/* `record` has its number and sum in its first two words. */
static void recorder_put(struct ring *g, const void *record)
{
    uint64_t number = g->next++, sum;
    char *to = g->at + (size_t)((number - 1) % g->count) * g->bytes;
    _Atomic uint64_t *at = (_Atomic uint64_t *)(void *)to;

    atomic_store_explicit(at, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy(to + 2 * sizeof(uint64_t), (const char *)record + 2 * sizeof(uint64_t),
           g->bytes - 2 * sizeof(uint64_t));
    /* As if the number were there: a body with the number of another is not whole either. */
    char whole[sizeof(struct ek_recorder_step)];
    memcpy(whole, record, g->bytes);
    memcpy(whole, &number, sizeof(number));
    sum = ek_recorder_sum(whole, g->bytes, NUMBER_SKIP);
    memcpy(to + NUMBER_SKIP, &sum, sizeof(sum));
    atomic_store_explicit(at, number, memory_order_release);
}

static void look_at_memory(struct ek_recorder *r, uint64_t now_us)
{
    char text[64];
    if (r->statm < 0 || now_us - r->looked_us < EK_US_PER_S)
        return;
    r->looked_us = now_us;
    ssize_t n = pread(r->statm, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return;
    text[n] = '\0';
    const char *resident = strchr(text, ' ');
    unsigned long long pages = resident ? strtoull(resident, NULL, 10) : 0;
    r->resident_mib = (uint32_t)(pages * r->page_kib / 1024);
}

void ek_recorder_begin(struct ek_recorder *r, const struct ek_recorder_step *step)
{
    if (r)
        recorder_put(&r->begun, step);
}

void ek_recorder_step(struct ek_recorder *r, const struct ek_recorder_step *step)
{
    if (!r)
        return;
    struct ek_recorder_step s = *step;
    look_at_memory(r, s.at_us);
    s.resident_mib = r->resident_mib;
    recorder_put(&r->steps, &s);
}

void ek_recorder_request(struct ek_recorder *r, const struct ek_recorder_request *request)
{
    if (r)
        recorder_put(&r->requests, request);
}
