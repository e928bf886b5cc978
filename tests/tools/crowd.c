/*
 * Clients that ask, take what comes and ask again at once, each over a connection of its own, until
 * the program is killed: faster than one in Python could.
 *
 *   crowd PORT CLIENTS        of 127.0.0.1
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in g_to = {.sin_family = AF_INET};

static void *ask_again(void *ctx)
{
    static const char text[] = "GET / HTTP/1.1\r\n\r\n";
    const struct linger at_once = {.l_onoff = 1};
    char answer[1024];
    (void)ctx;

    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        if (connect(fd, (const struct sockaddr *)(const void *)&g_to, sizeof(g_to)) == 0 &&
            send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL) > 0)
            (void)recv(fd, answer, sizeof(answer), 0);
        (void)close(fd);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: crowd PORT CLIENTS\n");
        return 2;
    }
    g_to.sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10));
    g_to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, ask_again, NULL) != 0)
            return 1;
    }
    (void)pause();
    return 0;
}
