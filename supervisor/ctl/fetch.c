/*
 * GET with libcurl for `evenkeelctl top` (many pages at once), `bench-fit` and `diagnose --live`
 * (one). evenkeelctl has no event loop, so a call returns when every page has come or its time is
 * over. A body beyond the buffer's limit is an error, not a page cut in the middle.
 */
#include "supervisor/ctl/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/path.h"

#define BODY_MOST  (4u << 20)
#define CONNECT_MS 2000L
#define TOTAL_MS   5000L

static size_t fetch_collect(char *bytes, size_t size, size_t count, void *ctx)
{
    return ek_buf_add(ctx, bytes, size * count) < 0 ? 0 : size * count;
}

/* A handle that will GET base + path into `out`, NULL if that is no address. */
static CURL *fetch_prepare(const char *base, const char *path, struct ek_buf *out,
                           uint32_t timeout_ms)
{
    char url[600];
    int w = snprintf(url, sizeof(url), "%s%.*s%s", strstr(base, "://") ? "" : "http://",
                     (int)ek_path_length(base), base, path);
    CURL *c = w > 0 && (size_t)w < sizeof(url) ? curl_easy_init() : NULL;
    if (!c)
        return NULL;
    ek_buf_clear(out);
    out->limit = BODY_MOST;
    (void)curl_easy_setopt(c, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#endif
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS,
                           timeout_ms < CONNECT_MS ? (long)timeout_ms : CONNECT_MS);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, fetch_collect);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    return c;
}

static int fetch_judge(CURL *c, CURLcode rc, char said[200])
{
    long status = 0;
    const char *url = "";
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(c, CURLINFO_EFFECTIVE_URL, &url);
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

int fetch_page(const char *base, const char *path, struct ek_buf *out, char said[200])
{
    CURL *c = fetch_prepare(base, path, out, TOTAL_MS);
    if (!c) {
        (void)snprintf(said, 200, "%.100s is no address", base);
        return -EBADMSG;
    }
    int r = fetch_judge(c, curl_easy_perform(c), said);
    curl_easy_cleanup(c);
    return r;
}

/* Runs until none is left; then each has its result. */
static void run_all(CURLM *m, struct page_fetch *items, CURL *const *handles, uint32_t count)
{
    int running = 1, left;
    while (running > 0 && curl_multi_perform(m, &running) == CURLM_OK && running > 0) {
        if (curl_multi_poll(m, NULL, 0, 100, NULL) != CURLM_OK)
            break;
    }
    for (const CURLMsg *msg; (msg = curl_multi_info_read(m, &left));) {
        for (uint32_t i = 0; i < count; i++) {
            if (handles[i] && handles[i] == msg->easy_handle)
                items[i].error = fetch_judge(handles[i], msg->data.result, items[i].said);
        }
    }
}

int fetch_pages(struct page_fetch *items, uint32_t count, uint32_t timeout_ms)
{
    CURL *handles[FETCH_MOST] = {0};
    CURLM *m = curl_multi_init();
    count = count < FETCH_MOST ? count : FETCH_MOST;
    for (uint32_t i = 0; m && i < count; i++) {
        items[i].error = -ECONNREFUSED;
        handles[i] = fetch_prepare(items[i].base, items[i].path, &items[i].body, timeout_ms);
        (void)snprintf(items[i].said, sizeof(items[i].said), "%.100s cannot be asked",
                       items[i].base);
        if (handles[i])
            (void)curl_multi_add_handle(m, handles[i]); /* if not, it has no result */
    }
    if (m)
        run_all(m, items, handles, count);
    for (uint32_t i = 0; i < count; i++) {
        if (!handles[i])
            continue;
        (void)curl_multi_remove_handle(m, handles[i]);
        curl_easy_cleanup(handles[i]);
    }
    (void)curl_multi_cleanup(m);
    return m ? 0 : -ENOMEM;
}
