/*
 * Finds the servers of this host for `evenkeelctl top` (verb_top.c), which asks again now and then.
 * A pass over /proc takes the processes whose command line starts an engine; the inodes of their
 * sockets are looked up among the listening ones of /proc/net/tcp and tcp6. Processes of another
 * network namespace are left out: their ports mean nothing here.
 */
#include "supervisor/ctl/hosts.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/promtext.h"
#include "supervisor/engines/dialect.h"

#define WORDS_BYTES    16384 /* of a command line; the rest cannot matter */
#define LISTENERS_MOST 4096
#define LISTENING      0x0a /* TCP_LISTEN in /proc/net/tcp */
#define PORT_DEFAULT   8000

struct listener {
    unsigned long inode;
    uint16_t port;
};

static const char *base_of(const char *word)
{
    const char *slash = strrchr(word, '/');
    return slash ? slash + 1 : word;
}

static uint16_t port_of(const char *text)
{
    double v;
    size_t n = strlen(text);
    return n > 0 && promtext_number(text, n, &v) == n && v >= 1 && v <= 65535 ? (uint16_t)v : 0;
}

/* The word after this one, NULL behind the last. */
static const char *next_word(const char *word, const char *end)
{
    word += strlen(word) + 1;
    return word < end ? word : NULL;
}

/* Whether this word and the next are the beginning of an engine's command line. */
static bool starts_engine(const char *word, const char *next)
{
    const struct dialect *d;
    for (uint32_t i = 0; (d = dialect_at(i)) != NULL; i++) {
        bool program = d->program && strcmp(base_of(word), d->program) == 0;
        if ((program && (!d->verb || (next && strcmp(next, d->verb) == 0))) ||
            (d->modules && strncmp(word, d->modules, strlen(d->modules)) == 0))
            return true;
    }
    return false;
}

bool hosts_is_server(const char *words, size_t len, uint16_t *ret_port, char what[96])
{
    const char *end = words + len, *second = NULL;
    uint16_t port = 0;
    int at = 0;
    bool is = false;
    if (len == 0 || words[len - 1] != '\0')
        return false;
    what[0] = '\0';
    for (const char *w = words; w; w = next_word(w, end), at++) {
        const char *base = base_of(w);
        second = next_word(w, end);
        /* the program, or the script or module that an interpreter runs */
        if (!is && at < 4 && starts_engine(w, second)) {
            is = true;
            (void)snprintf(what, 96, "%.40s%s%.50s", base, second ? " " : "", second ? second : "");
        }
        if (strcmp(w, "--port") == 0 && second)
            port = port_of(second);
        else if (strncmp(w, "--port=", 7) == 0)
            port = port_of(w + 7);
    }
    *ret_port = port ? port : PORT_DEFAULT;
    return is;
}

static size_t read_words(const char *path, char words[WORDS_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, words, WORDS_BYTES - 1);
    if (fd >= 0)
        (void)close(fd);
    if (n <= 0)
        return 0;
    if (words[n - 1] != '\0') /* a long one is cut */
        words[n++] = '\0';
    return (size_t)n;
}

/* Adds what listens there, of one address family. */
static uint32_t read_listeners(const char *path, struct listener *list, uint32_t count)
{
    char line[512];
    FILE *f = fopen(path, "re");
    while (f && count < LISTENERS_MOST && fgets(line, sizeof(line), f)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*[^:]: %*[^:]:%x %*s %x %*s %*s %*s %*s %*s %lu", &port, &state,
                   &inode) != 3 ||
            state != LISTENING || port == 0 || port > 65535)
            continue;
        list[count++] = (struct listener){inode, (uint16_t)port};
    }
    if (f)
        (void)fclose(f); /* only read */
    return count;
}

static void add_port(struct host_server *s, uint16_t port)
{
    for (uint32_t i = 0; i < s->ports; i++) {
        if (s->port[i] == port)
            return;
    }
    if (s->ports < HOSTS_PORTS)
        s->port[s->ports++] = port;
}

static bool somebody_listens(const struct listener *list, uint32_t count, uint16_t port)
{
    bool found = false;
    for (uint32_t i = 0; i < count && !found; i++)
        found = list[i].port == port;
    return found;
}

/* Ports of the process's own sockets; without the right to look there, that of its flags. */
static void find_ports(const char *proc, struct host_server *s, uint16_t flag,
                       const struct listener *list, uint32_t count)
{
    char path[300], link[80];
    if (somebody_listens(list, count, flag))
        add_port(s, flag);
    (void)snprintf(path, sizeof(path), "%s/%d/fd", proc, (int)s->pid);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        unsigned long inode;
        ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (n <= 0 || sscanf(link, "socket:[%lu]", &inode) != 1)
            continue;
        for (uint32_t i = 0; i < count; i++) {
            if (list[i].inode == inode)
                add_port(s, list[i].port);
        }
    }
    if (dir)
        (void)closedir(dir);
}

static bool same_network(const char *proc, pid_t pid)
{
    char path[300], own[80], its[80];
    (void)snprintf(path, sizeof(path), "%s/self/ns/net", proc);
    ssize_t a = readlink(path, own, sizeof(own));
    (void)snprintf(path, sizeof(path), "%s/%d/ns/net", proc, (int)pid);
    ssize_t b = readlink(path, its, sizeof(its));
    return a <= 0 || b <= 0 || (a == b && memcmp(own, its, (size_t)a) == 0);
}

/* Helpers of a server have its command line and its sockets: one of them is enough. */
static bool is_known(const struct host_server *list, uint32_t count, const struct host_server *s)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < s->ports; k++) {
            if (list[i].elsewhere == s->elsewhere && list[i].ports > 0 &&
                list[i].port[0] == s->port[k])
                return true;
        }
    }
    return false;
}

uint32_t hosts_scan(const char *proc, struct host_server ret_servers[HOSTS_MOST])
{
    static const char *const tables[] = {"tcp", "tcp6"};
    struct listener *list = calloc(LISTENERS_MOST, sizeof(*list));
    char path[300], words[WORDS_BYTES];
    uint32_t count = 0;
    DIR *dir = list ? opendir(proc) : NULL;
    for (const struct dirent *e; dir && count < HOSTS_MOST && (e = readdir(dir));) {
        pid_t pid = 0;
        uint16_t flag;
        uint32_t listeners = 0;
        for (const char *c = e->d_name; *c >= '0' && *c <= '9' && pid < 100000000; c++)
            pid = pid * 10 + (*c - '0');
        (void)snprintf(path, sizeof(path), "%s/%d/cmdline", proc, (int)pid);
        size_t len = pid > 0 ? read_words(path, words) : 0;
        struct host_server *s = &ret_servers[count];
        *s = (struct host_server){.pid = pid};
        if (len == 0 || !hosts_is_server(words, len, &flag, s->what))
            continue;
        s->elsewhere = !same_network(proc, pid);
        for (int i = 0; i < 2; i++) {
            (void)snprintf(path, sizeof(path), "%s/%d/net/%s", proc, (int)pid, tables[i]);
            listeners = read_listeners(path, list, listeners);
        }
        find_ports(proc, s, flag, list, listeners);
        count += s->ports > 0 && !is_known(ret_servers, count, s);
    }
    if (dir)
        (void)closedir(dir);
    free(list);
    return count;
}
