/*
 * The client of make bench-http: many connections in one thread, as little work for each as can be,
 * so that what is measured beside it on the same cores is the server.
 *
 *   http_client PORT streams N TOKENS      N streams at once: "done lost events seconds"
 *   http_client PORT requests N SECONDS PATH [BODY]   over N kept connections: "done lost seconds"
 *   http_client PORT idle N                opens N, says "open", ends at the end of its input
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 256
#define TAIL   16 /* bytes kept to find a word over the border of two reads */

struct line {
    int fd;
    char tail[TAIL];
    size_t tail_len;
    size_t head_at; /* how much of \r\n\r\n was seen */
    long left;      /* bytes of the body to come, -1 = the head is not over */
    char head[2048];
    size_t head_len;
    bool over;
};

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int dial(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        (void)close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

/* All lines open and watched; how many could not be. */
static unsigned open_all(struct line *lines, unsigned n, unsigned port, int epoll)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < n; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &lines[i]};
        lines[i] = (struct line){.fd = dial(port), .left = -1};
        if (lines[i].fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, lines[i].fd, &e) < 0) {
            lines[i].over = true;
            failed++;
        }
    }
    return failed;
}

static bool send_all(int fd, const char *text, size_t len)
{
    return send(fd, text, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static size_t write_request(char *to, size_t size, const char *path, const char *body)
{
    int n =
        body ? snprintf(to, size,
                        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n\r\n%s",
                        path, strlen(body), body)
             : snprintf(to, size, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

/* Counts `word` in what has come, over the borders of reads too. */
static unsigned long count_word(struct line *l, const char *bytes, size_t len, const char *word)
{
    char text[65536 + TAIL];
    size_t w = strlen(word);
    unsigned long found = 0;
    memcpy(text, l->tail, l->tail_len);
    memcpy(text + l->tail_len, bytes, len);
    size_t n = l->tail_len + len;
    for (size_t i = 0; i + w <= n; i++)
        found += memcmp(text + i, word, w) == 0;
    l->tail_len = n < w - 1 ? n : w - 1;
    memcpy(l->tail, text + n - l->tail_len, l->tail_len);
    return found;
}

static int run_streams(unsigned port, unsigned n, const char *tokens)
{
    static char bytes[65536];
    char body[256], request[1024];
    struct line *lines = calloc(n, sizeof(*lines));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!lines || epoll < 0)
        return 1;
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"tiny\",\"prompt\":\"Once\",\"max_tokens\":%s,\"stream\":true,"
                   "\"ignore_eos\":true}",
                   tokens);
    size_t len = write_request(request, sizeof(request), "/v1/completions", body);
    unsigned lost = open_all(lines, n, port, epoll), open = n - lost, done = 0;
    unsigned long events = 0;
    double begin = now_s();
    for (unsigned i = 0; i < n; i++) {
        if (!lines[i].over && !send_all(lines[i].fd, request, len))
            lines[i].over = true, lost++, open--;
    }
    while (open > 0) {
        struct epoll_event e[EVENTS];
        int got = epoll_wait(epoll, e, EVENTS, 120000);
        if (got <= 0)
            break;
        for (int i = 0; i < got; i++) {
            struct line *l = e[i].data.ptr;
            ssize_t r = recv(l->fd, bytes, sizeof(bytes), 0);
            if (l->over)
                continue;
            bool end = r > 0 && count_word(l, bytes, (size_t)r, "data: [DONE]") > 0;
            if (r > 0)
                events++;
            if (end || r <= 0) {
                l->over = true;
                done += end;
                lost += !end;
                open--;
                (void)epoll_ctl(epoll, EPOLL_CTL_DEL, l->fd, NULL);
                (void)close(l->fd);
            }
        }
    }
    printf("%u %u %lu %.3f\n", done, n - done, events, now_s() - begin);
    free(lines);
    return lost + open == 0 ? 0 : 1;
}

/* Takes bytes of answers with a Content-Length. How many answers ended; -1 = not 200. */
static int take(struct line *l, const char *p, size_t n)
{
    int ended = 0;
    while (n > 0) {
        if (l->left >= 0) {
            size_t k = (size_t)l->left < n ? (size_t)l->left : n;
            l->left -= (long)k;
            p += k;
            n -= k;
        } else {
            if (l->head_len + 1 >= sizeof(l->head))
                return -1;
            l->head[l->head_len++] = *p++;
            n--;
            if (l->head_len < 4 || memcmp(l->head + l->head_len - 4, "\r\n\r\n", 4) != 0)
                continue;
            l->head[l->head_len] = '\0';
            const char *length = strstr(l->head, "Content-Length: ");
            if (strncmp(l->head, "HTTP/1.1 200", 12) != 0 || !length)
                return -1;
            l->left = strtol(length + 16, NULL, 10);
            l->head_len = 0;
        }
        if (l->left == 0) {
            l->left = -1;
            ended++;
        }
    }
    return ended;
}

static int run_requests(unsigned port, unsigned n, double seconds, const char *path,
                        const char *body)
{
    static char bytes[65536];
    char request[2048];
    struct line *lines = calloc(n, sizeof(*lines));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    size_t len = write_request(request, sizeof(request), path, body);
    if (!lines || epoll < 0 || len == 0)
        return 1;
    unsigned lost = open_all(lines, n, port, epoll);
    unsigned long done = 0;
    double begin = now_s(), at = begin;
    for (unsigned i = 0; i < n; i++) {
        if (!lines[i].over && !send_all(lines[i].fd, request, len))
            lost++;
    }
    while (at - begin < seconds) {
        struct epoll_event e[EVENTS];
        int got = epoll_wait(epoll, e, EVENTS, 1000);
        for (int i = 0; i < got; i++) {
            struct line *l = e[i].data.ptr;
            ssize_t r = recv(l->fd, bytes, sizeof(bytes), 0);
            int ended = r > 0 ? take(l, bytes, (size_t)r) : -1;
            if (ended < 0 || (ended > 0 && !send_all(l->fd, request, len))) {
                lost++;
                (void)epoll_ctl(epoll, EPOLL_CTL_DEL, l->fd, NULL);
                continue;
            }
            done += (unsigned long)ended;
        }
        at = now_s();
    }
    printf("%lu %u %.3f\n", done, lost, at - begin);
    free(lines);
    return lost == 0 ? 0 : 1;
}

static int run_idle(unsigned port, unsigned n)
{
    char c;
    struct line *lines = calloc(n, sizeof(*lines));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!lines || epoll < 0)
        return 1;
    unsigned lost = open_all(lines, n, port, epoll);
    /* one request each: an idle connection is one that has been used */
    for (unsigned i = 0; i < n; i++) {
        static const char ask[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
        char answer[2048];
        if (lines[i].over || !send_all(lines[i].fd, ask, sizeof(ask) - 1) ||
            recv(lines[i].fd, answer, sizeof(answer), 0) <= 0)
            lost++;
    }
    printf("open %u %u\n", n - lost, lost);
    (void)fflush(stdout);
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    free(lines);
    return lost == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l);
    }
    if (argc < 4)
        return 2;
    unsigned port = (unsigned)strtoul(argv[1], NULL, 10);
    unsigned n = (unsigned)strtoul(argv[3], NULL, 10);
    if (strcmp(argv[2], "streams") == 0 && argc == 5)
        return run_streams(port, n, argv[4]);
    if (strcmp(argv[2], "requests") == 0 && argc >= 6)
        return run_requests(port, n, strtod(argv[4], NULL), argv[5], argc > 6 ? argv[6] : NULL);
    if (strcmp(argv[2], "idle") == 0)
        return run_idle(port, n);
    return 2;
}
