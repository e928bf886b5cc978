/*
 * Judges what verb_preflight.c has gathered: the output of nvidia-smi about cards and their links,
 * limits of the shell, and files of /proc. Each finding is a line with a level and what to do. It
 * parses text of other programs, so a field that is missing or unreadable is passed over, never an
 * error.
 */
#include "supervisor/ctl/preflight.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/promtext.h"

#define GIB     1073741824.0
#define FIELDS  11
#define NOFILE  4096u
#define DRIVER  525.0 /* the first that serves CUDA 12 */
#define SHM_GIB 1.0

const char preflight_query[] =
    "name,driver_version,memory.total,memory.used,mig.mode.current,ecc.mode.current,"
    "ecc.errors.uncorrected.volatile.total,pcie.link.width.current,pcie.link.width.max,"
    "persistence_mode,temperature.gpu";
enum { NAME, VERSION, TOTAL, USED, MIG, ECC, ERRORS, WIDTH, WIDTH_MAX, PERSISTENCE, HEAT };

static void preflight_add(struct preflight *p, enum preflight_state state, const char *what,
                          const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static void preflight_add(struct preflight *p, enum preflight_state state, const char *what,
                          const char *remedy, const char *fmt, ...)
{
    va_list ap;
    if (p->count == PREFLIGHT_MOST)
        return;
    struct preflight_line *l = &p->line[p->count++];
    l->state = state;
    (void)snprintf(l->what, sizeof(l->what), "%s", what);
    (void)snprintf(l->remedy, sizeof(l->remedy), "%s", state == PREFLIGHT_OK ? "" : remedy);
    va_start(ap, fmt);
    (void)vsnprintf(l->is, sizeof(l->is), fmt, ap); /* a sentence may be cut */
    va_end(ap);
}

/* Fields of one line, without the blanks around them. Returns how many. */
static int preflight_split(const char *line, size_t len, char fields[FIELDS][64])
{
    int n = 0;
    for (size_t at = 0; at <= len && n < FIELDS; n++) {
        const char *comma = memchr(line + at, ',', len - at);
        size_t end = comma ? (size_t)(comma - line) : len, from = at;
        while (from < end && line[from] == ' ')
            from++;
        size_t w = end;
        while (w > from && (line[w - 1] == ' ' || line[w - 1] == '\r'))
            w--;
        (void)snprintf(fields[n], 64, "%.*s", (int)(w - from < 63 ? w - from : 63), line + from);
        at = end + 1;
    }
    return n;
}

static double preflight_number(const char *text)
{
    double v = 0;
    return promtext_number(text, strlen(text), &v) > 0 ? v : -1;
}

static void judge_card(struct preflight *p, int card, char f[FIELDS][64])
{
    char what[40];
    double used = preflight_number(f[USED]), errors = preflight_number(f[ERRORS]),
           width = preflight_number(f[WIDTH]), width_max = preflight_number(f[WIDTH_MAX]),
           heat = preflight_number(f[HEAT]);
    (void)snprintf(what, sizeof(what), "GPU %d", card);
    preflight_add(p, PREFLIGHT_OK, what, "", "%s, %s MiB", f[NAME], f[TOTAL]);
    preflight_add(
        p, used > 1024 ? PREFLIGHT_NOTE : PREFLIGHT_OK, what,
        "see the processes below; wait for their memory or lower --gpu-memory-utilization",
        "%s MiB in use", f[USED]);
    if (strcmp(f[MIG], "Enabled") == 0)
        preflight_add(p, PREFLIGHT_NOTE, what,
                      "name a MIG instance in CUDA_VISIBLE_DEVICES, and plan with its memory",
                      "MIG is on");
    preflight_add(p, errors > 0 ? PREFLIGHT_BAD : PREFLIGHT_OK, what,
                  "drain the machine and reset the card when nothing uses it; repeated: replace it",
                  "ECC %s, %s uncorrected errors", f[ECC], f[ERRORS]);
    if (width > 0 && width_max > 0)
        preflight_add(p, width < width_max ? PREFLIGHT_NOTE : PREFLIGHT_OK, what,
                      "a card at rest may save power; under load it means slot, riser or firmware",
                      "PCIe x%.0f of x%.0f", width, width_max);
    preflight_add(
        p, strcmp(f[PERSISTENCE], "Disabled") == 0 ? PREFLIGHT_NOTE : PREFLIGHT_OK, what,
        "systemctl enable --now nvidia-persistenced (else the first start takes seconds longer)",
        "persistence mode %s", f[PERSISTENCE]);
    if (heat >= 0)
        preflight_add(p, heat > 85 ? PREFLIGHT_BAD : PREFLIGHT_OK, what,
                      "look at fans and air flow: it slows down", "%.0f degrees", heat);
}

/* One model over several cards takes of each what the smallest has, and waits for the slowest. */
static void judge_alike(struct preflight *p, int card, char f[FIELDS][64], char first[FIELDS][64])
{
    char what[40];
    (void)snprintf(what, sizeof(what), "GPU %d", card);
    if (!*first[NAME]) /* its line was none */
        return;
    if (strcmp(f[NAME], first[NAME]) != 0 || strcmp(f[TOTAL], first[TOTAL]) != 0)
        preflight_add(p, PREFLIGHT_NOTE, what,
                      "choose equal cards (CUDA_VISIBLE_DEVICES), or stages by their size",
                      "not as GPU 0: %.40s, %.12s MiB", first[NAME], first[TOTAL]);
}

static size_t word_of(const char **at, const char *end)
{
    while (*at < end && (**at == ' ' || **at == '\t'))
        (*at)++;
    size_t n = 0;
    while (*at + n < end && (*at)[n] != ' ' && (*at)[n] != '\t')
        n++;
    return n;
}

static bool is_card(const char *word, size_t n)
{
    return n > 3 && strncmp(word, "GPU", 3) == 0 && word[3] >= '0' && word[3] <= '9';
}

/* The words behind the name of a card's line; NULL for another line, such as the head, which names
 * cards or CPUs next. */
static const char *links_of(const char *line, const char *end)
{
    const char *at = line;
    size_t n = word_of(&at, end);
    if (!is_card(at, n))
        return NULL;
    const char *rest = at + n;
    at = rest;
    n = word_of(&at, end);
    return n == 0 || is_card(at, n) || strncmp(at, "CPU", n < 3 ? n : 3) == 0 ? NULL : rest;
}

/* A matrix: for each pair X, NV with a count, or the way over PCIe (PIX, PXB, PHB, NODE, SYS). */
static void judge_links(const char *text, struct preflight *p)
{
    uint32_t cards = 0, pairs = 0, plain = 0;
    char first[48] = "";
    for (const char *line = text; line && *line;) {
        const char *end = line + strcspn(line, "\n"), *at = links_of(line, end);
        for (uint32_t other = 0; at && other < cards; other++) {
            size_t n = word_of(&at, end);
            pairs++;
            if (n < 3 || strncmp(at, "NV", 2) != 0) {
                if (plain++ == 0)
                    (void)snprintf(first, sizeof(first), "%u and %u by %.*s", other, cards,
                                   (int)(n < 8 ? n : 8), at);
            }
            at += n;
        }
        cards += at != NULL;
        line = end + (*end == '\n');
    }
    if (pairs && plain)
        preflight_add(p, PREFLIGHT_NOTE, "links",
                      "tensor parallelism waits for them: take cards that NVLink joins, or stages "
                      "(--pipeline-parallel-size)",
                      "%u of %u pairs of GPUs without NVLink: %s", plain, pairs, first);
    else if (pairs)
        preflight_add(p, PREFLIGHT_OK, "links", "", "NVLink between all %u GPUs", cards);
}

static void judge_gpus(const struct preflight_facts *f, struct preflight *p)
{
    char fields[FIELDS][64], first[FIELDS][64] = {{0}};
    int card = 0;
    if (f->gpu_tool_hung) {
        preflight_add(p, PREFLIGHT_BAD, "driver",
                      "a card hangs in the driver: look for XID in journalctl -k, reboot",
                      "nvidia-smi did not answer");
        return;
    }
    if (!f->driver && !f->gpus) {
        preflight_add(p, PREFLIGHT_NOTE, "driver",
                      "install NVIDIA's driver to use a GPU; the CPU works without",
                      "no NVIDIA driver is loaded");
        return;
    }
    for (const char *line = f->gpus; line && *line; card++) {
        size_t n = strcspn(line, "\n");
        if (preflight_split(line, n, fields) == FIELDS) {
            double version = preflight_number(fields[VERSION]);
            if (card == 0)
                preflight_add(p, version < DRIVER ? PREFLIGHT_BAD : PREFLIGHT_OK, "driver",
                              "CUDA 12 needs 525 or later", "version %s", fields[VERSION]);
            if (card == 0)
                memcpy(first, fields, sizeof(first));
            judge_card(p, card, fields);
            judge_alike(p, card, fields, first);
        }
        line += n + (line[n] == '\n');
    }
    judge_links(f->links, p);
    for (const char *line = f->apps; line && *line;) {
        size_t n = strcspn(line, "\n");
        if (n > 0)
            preflight_add(p, PREFLIGHT_NOTE, "process on a GPU",
                          "if nobody needs it, end it by its unit or pid; else leave it room",
                          "%.*s", (int)(n < 110 ? n : 110), line);
        line += n + (line[n] == '\n');
    }
}

static void judge_limits(const struct preflight_facts *f, struct preflight *p)
{
    if (f->memlock == UINT64_MAX)
        preflight_add(p, PREFLIGHT_OK, "locked memory", "", "no limit");
    else
        preflight_add(
            p, f->memlock < (uint64_t)GIB ? PREFLIGHT_NOTE : PREFLIGHT_OK, "locked memory",
            "LimitMEMLOCK=infinity in the unit (ulimit -l): the host tier of the KV cache is "
            "locked",
            "%.2f GiB", (double)f->memlock / GIB);
    preflight_add(p, f->nofile < NOFILE ? PREFLIGHT_NOTE : PREFLIGHT_OK, "open files",
                  "LimitNOFILE=65536 in the unit (ulimit -n): each connection takes one", "%llu",
                  (unsigned long long)f->nofile);
    if (f->cgroup_bytes)
        preflight_add(p,
                      f->memory_bytes && f->cgroup_bytes < f->memory_bytes / 4 ? PREFLIGHT_NOTE
                                                                               : PREFLIGHT_OK,
                      "cgroup memory",
                      "raise MemoryMax (or the container's limit) if the host tier shall be large",
                      "%.2f of the machine's %.2f GiB", (double)f->cgroup_bytes / GIB,
                      (double)f->memory_bytes / GIB);
    else if (f->memory_bytes)
        preflight_add(p, PREFLIGHT_OK, "host memory", "", "%.2f GiB, no cgroup limit",
                      (double)f->memory_bytes / GIB);
    if (f->shm_bytes)
        preflight_add(p, (double)f->shm_bytes < SHM_GIB * GIB ? PREFLIGHT_NOTE : PREFLIGHT_OK,
                      "/dev/shm",
                      "docker run --shm-size 10g or --ipc=host: vLLM's workers talk through it",
                      "%.2f GiB", (double)f->shm_bytes / GIB);
}

void preflight_judge(const struct preflight_facts *f, struct preflight *ret)
{
    ret->count = 0;
    judge_gpus(f, ret);
    judge_limits(f, ret);
    if (f->port)
        preflight_add(
            ret, f->port_free ? PREFLIGHT_OK : PREFLIGHT_BAD, "port",
            "ss -ltnp says who listens there; end an own stray by its unit, or choose another port",
            "%u is %s", f->port, f->port_free ? "free" : "taken");
    if (!f->model)
        return;
    if (f->model_error)
        preflight_add(
            ret, PREFLIGHT_BAD, "model",
            f->model_error == EACCES
                ? "give the service's user the right to read it, and to enter those above"
                : "name the directory that has config.json; nothing is fetched from a hub",
            "%.100s cannot be read: %s", f->model, ek_strerror(-f->model_error));
    else
        preflight_add(ret, f->config_there && f->weights_there ? PREFLIGHT_OK : PREFLIGHT_BAD,
                      "model", "fetch the missing files; names are in model.safetensors.index.json",
                      "config.json %s, weights %s", f->config_there ? "there" : "missing",
                      f->weights_there ? "there" : "missing");
}
