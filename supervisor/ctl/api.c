/*
 * The calls, by libcurl over a Unix socket. The host in the URL means nothing.
 */
#include "supervisor/ctl/api.h"

#include <curl/curl.h>
#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fdpass.h"

#define BODY_MOST   (8u << 20)
#define CONNECT_MS  2000
#define TOTAL_MS    15000L
#define SYSTEM_PATH "/run/evenkeel/evenkeeld.sock"

static int api_fail(struct api *a, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int api_fail(struct api *a, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(a->error, sizeof(a->error), fmt, ap); /* a sentence may be cut */
    va_end(ap);
    return code;
}

static size_t api_collect(char *bytes, size_t size, size_t count, void *ctx)
{
    struct api *a = ctx;
    return ek_buf_add(&a->body, bytes, size * count) < 0 ? 0 : size * count;
}

/* Whether a process listens there: a socket that was left behind must not hide a live one. */
static bool answers(const char *path)
{
    int fd = ek_connect_unix(path, CONNECT_MS);
    if (fd < 0)
        return false;
    (void)close(fd);
    return true;
}

/* Where evenkeeld puts its socket by default: the first place that answers. */
static void find_socket(char *ret_path, size_t size)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n = snprintf(ret_path, size, "%s", SYSTEM_PATH);
    if (answers(ret_path))
        return;
    if (runtime && *runtime) {
        n = snprintf(ret_path, size, "%s/evenkeel/evenkeeld.sock", runtime);
        if (n > 0 && (size_t)n < size && answers(ret_path))
            return;
    }
    n = snprintf(ret_path, size, "/tmp/evenkeel-%u/evenkeeld.sock", (unsigned)getuid());
    struct stat st; /* what another user put into /tmp does not count */
    if (n > 0 && (size_t)n < size && lstat(ret_path, &st) == 0 && st.st_uid == getuid() &&
        answers(ret_path))
        return;
    (void)snprintf(ret_path, size, "%s", SYSTEM_PATH);
}

static int choose_socket(struct api *a, const char *given)
{
    const char *path = given ? given : getenv("EVENKEEL_SOCKET");
    if (!path || !*path) {
        find_socket(a->socket, sizeof(a->socket));
        return 0;
    }
    if (strlen(path) >= sizeof(a->socket))
        return api_fail(a, -ENAMETOOLONG, "The socket's path is longer than %zu bytes: %s",
                        sizeof(a->socket) - 1, path);
    (void)snprintf(a->socket, sizeof(a->socket), "%s", path);
    return 0;
}

int api_open(struct api *a, const char *socket)
{
    *a = (struct api){.body = {.limit = BODY_MOST}};
    int r = choose_socket(a, socket);
    if (r < 0)
        return r;
    a->curl = curl_easy_init();
    return a->curl ? 0 : api_fail(a, -ENOMEM, "Out of memory.");
}

void api_close(struct api *a)
{
    curl_easy_cleanup(a->curl);
    ek_buf_done(&a->body);
    a->curl = NULL;
}

static CURLcode perform(struct api *a, const char *method, const char *url, const char *text,
                        struct curl_slist *headers, long *ret_status)
{
    CURL *c = a->curl;
    curl_easy_reset(c);
    ek_buf_clear(&a->body);
    (void)curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, a->socket);
    (void)curl_easy_setopt(c, CURLOPT_URL, url);
    (void)curl_easy_setopt(c, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, TOTAL_MS);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, api_collect);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    if (strcmp(method, "GET") != 0) {
        (void)curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, text ? text : "");
        (void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    }
    CURLcode rc = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, ret_status);
    return rc;
}

/* What evenkeeld said in {"error": {"message"}}, or the status alone. */
static int api_refused(struct api *a, long status, const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error");
    const char *said = json_string_value(json_object_get(error, "message"));
    if (said)
        return api_fail(a, -EBADMSG, "%s", said);
    return api_fail(a, -EBADMSG, "evenkeeld answered with status %ld.", status);
}

/* An evenkeeld whose unit, or user, has a run directory of its own: the first that answers. */
static bool find_other(char *ret_path, size_t size)
{
    static const char *const places[] = {"/run/*/evenkeeld.sock",
                                         "/run/user/*/evenkeel/evenkeeld.sock"};
    bool found = false;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !found; i++) {
        glob_t paths = {0};
        if (glob(places[i], GLOB_NOSORT, NULL, &paths) != 0)
            continue;
        for (size_t k = 0; k < paths.gl_pathc && !found; k++) {
            int n = snprintf(ret_path, size, "%s", paths.gl_pathv[k]);
            found = n > 0 && (size_t)n < size && answers(ret_path);
        }
        globfree(&paths);
    }
    return found;
}

static int unreached(struct api *a, CURLcode rc)
{
    if (access(a->socket, W_OK) < 0 && errno == EACCES)
        return api_fail(
            a, -ECONNREFUSED,
            "%s is not open to this user: use sudo, or to look only, be in the group of "
            "evenkeeld (usermod -aG evenkeel NAME).",
            a->socket);
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return api_fail(a, -ECONNREFUSED,
                        "evenkeeld cannot be reached at %s: it does not answer within %ld s. Is it "
                        "stopped (ps -o pid,stat -C evenkeeld)?",
                        a->socket, TOTAL_MS / 1000);
    int fd = ek_connect_unix(a->socket, CONNECT_MS);
    if (fd >= 0)
        (void)close(fd);
    const char *why = fd == -ENOENT         ? "there is no such socket"
                      : fd == -ECONNREFUSED ? "no process listens there"
                                            : curl_easy_strerror(rc);
    char other[sizeof(a->socket)];
    if (find_other(other, sizeof(other)))
        return api_fail(a, -ECONNREFUSED,
                        "evenkeeld cannot be reached at %s: %s. One listens at %s: use --socket "
                        "%s, or set EVENKEEL_SOCKET.",
                        a->socket, why, other, other);
    return api_fail(a, -ECONNREFUSED,
                    "evenkeeld cannot be reached at %s: %s. Is it running? "
                    "(systemctl status evenkeeld; --socket names another)",
                    a->socket, why);
}

int api_call(struct api *a, const char *method, const char *path, const json_t *body,
             json_t **ret_answer)
{
    int r = -ENOMEM;
    char url[512], *text = NULL;
    json_t *answer = NULL;
    long status = 0;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!headers)
        goto out;
    if (body && !(text = json_dumps(body, JSON_COMPACT)))
        goto out;
    int n = snprintf(url, sizeof(url), "http://evenkeeld%s", path);
    if (n < 0 || (size_t)n >= sizeof(url)) {
        r = api_fail(a, -EBADMSG, "The server's name is too long.");
        goto out;
    }
    CURLcode rc = perform(a, method, url, text, headers, &status);
    if (rc != CURLE_OK) {
        r = unreached(a, rc);
        goto out;
    }
    json_error_t where;
    answer = json_loadb(a->body.len ? a->body.data : "", a->body.len, 0, &where);
    if (status < 200 || status >= 300)
        r = api_refused(a, status, answer);
    else if (!answer && a->body.len)
        r = api_fail(a, -EBADMSG, "evenkeeld's answer is no JSON: %s.", where.text);
    else if (!answer && !(answer = json_object()))
        r = -ENOMEM;
    else
        r = 0;
    if (r == 0) {
        *ret_answer = answer;
        answer = NULL;
    }
out:
    if (r == -ENOMEM)
        (void)api_fail(a, r, "Out of memory.");
    json_decref(answer);
    free(text);
    curl_slist_free_all(headers);
    return r;
}
