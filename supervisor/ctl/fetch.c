#include "supervisor/ctl/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"

#define BODY_MOST  (4u << 20)
#define CONNECT_MS 2000L
#define TOTAL_MS   5000L

static size_t collect(char *bytes, size_t size, size_t count, void *ctx)
{
    return ek_buf_add(ctx, bytes, size * count) < 0 ? 0 : size * count;
}

int fetch_page(const char *base, const char *path, struct ek_buf *out, char said[200])
{
    char url[600];
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        n--;
    int w = snprintf(url, sizeof(url), "%s%.*s%s", strstr(base, "://") ? "" : "http://", (int)n,
                     base, path);
    CURL *c = w > 0 && (size_t)w < sizeof(url) ? curl_easy_init() : NULL;
    if (!c) {
        (void)snprintf(said, 200, "%.100s is no address", base);
        return -EBADMSG;
    }
    long status = 0;
    ek_buf_clear(out);
    out->limit = BODY_MOST;
    (void)curl_easy_setopt(c, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#endif
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, TOTAL_MS);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, collect);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    CURLcode rc = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(c);
    if (rc != CURLE_OK) {
        (void)snprintf(said, 200, "%.120s: %.70s", url, curl_easy_strerror(rc));
        return -ECONNREFUSED;
    }
    if (status != 200) {
        (void)snprintf(said, 200, "%.120s answered with status %ld", url, status);
        return -EBADMSG;
    }
    return 0;
}
