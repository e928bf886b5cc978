/*
 * Reads the file that holds a server's API key: config/options_server.c checks it, servers/launch.c
 * reads it at each start and has it put into a vLLM's environment, and evenkeeld's requests to the
 * server carry it. A word that cannot stand in a header, or is only a digest, is refused when the
 * configuration is read and not when the first request fails.
 */
#include "supervisor/io/key.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MOST 16384

/* What a header may carry, and what is no digest of a key. */
static int key_take(const char *word, size_t len, char *ret_key, size_t size)
{
    if (len == 0 || (len > 7 && strncmp(word, "sha256:", 7) == 0))
        return -EBADMSG;
    if (len >= size)
        return -EFBIG;
    for (size_t i = 0; i < len; i++) {
        if (word[i] <= ' ' || word[i] > '~')
            return -EBADMSG;
    }
    memcpy(ret_key, word, len);
    ret_key[len] = '\0';
    return 0;
}

int key_parse(const char *text, char *ret_key, size_t size)
{
    for (const char *line = text; *line;) {
        size_t all = strcspn(line, "\r\n");
        const char *first = line + strspn(line, " \t");
        size_t lead = (size_t)(first - line), len = strcspn(first, " \t\r\n");
        if (lead < all && *first != '#') {
            const char *second = first + len + strspn(first + len, " \t");
            size_t next = strcspn(second, " \t\r\n");
            return next > 0 ? key_take(second, next, ret_key, size)
                            : key_take(first, len, ret_key, size);
        }
        line += all;
        line += strspn(line, "\r\n");
    }
    return -EBADMSG;
}

bool key_in_flags(const char *path)
{
    const char *dot = path && strchr(path, '/') ? strrchr(path, '.') : NULL;
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

/* One plain word that YAML takes for nothing else: no quotes or lists, no number, no `false`. */
int key_parse_flags(const char *text, char *ret_key, size_t size)
{
    static const char name[] = "api-key:";
    for (const char *line = text; *line;) {
        size_t all = strcspn(line, "\r\n");
        const char *word = line + sizeof(name) - 1;
        if (strncmp(line, name, sizeof(name) - 1) == 0 && (*word == ' ' || *word == '\t')) {
            word += strspn(word, " \t");
            size_t len = strcspn(word, " \t\r\n");
            const char *rest = word + len + strspn(word + len, " \t");
            if (rest != line + all || len < 6 || !isalpha((unsigned char)*word) ||
                word[len - 1] == ':')
                return -EBADMSG;
            return key_take(word, len, ret_key, size);
        }
        line += all;
        line += strspn(line, "\r\n");
    }
    return -EBADMSG;
}

int key_read(const char *path, char *ret_key, size_t size)
{
    char text[FILE_MOST + 1], full[4096];
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    struct stat st;
    if (!path) {
        ret_key[0] = '\0';
        return 0;
    }
    bool named = !strchr(path, '/') && credentials && *credentials;
    int n = named ? snprintf(full, sizeof(full), "%s/%s", credentials, path)
                  : snprintf(full, sizeof(full), "%s", path);
    if (n < 0 || (size_t)n >= sizeof(full))
        return -ENAMETOOLONG;
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    ssize_t len = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, FILE_MOST) : -1;
    int r = len < 0 ? (S_ISREG(st.st_mode) ? -errno : -EINVAL) : 0;
    close(fd);
    if (r < 0)
        return r;
    text[len] = '\0';
    r = key_in_flags(path) ? key_parse_flags(text, ret_key, size) : key_parse(text, ret_key, size);
    explicit_bzero(text, sizeof(text));
    return r;
}
