/* libcurl, loaded when it is needed: it brings a dozen libraries that a server without traces has
 * no use for. */
#pragma once

#include <curl/curl.h>

struct curl_calls {
    __typeof__(curl_global_init) *global_init;
    __typeof__(curl_easy_init) *easy_init;
    __typeof__(curl_easy_setopt) *easy_setopt;
    __typeof__(curl_easy_perform) *easy_perform;
    __typeof__(curl_easy_getinfo) *easy_getinfo;
    __typeof__(curl_easy_reset) *easy_reset;
    __typeof__(curl_easy_cleanup) *easy_cleanup;
    __typeof__(curl_easy_strerror) *easy_strerror;
    __typeof__(curl_slist_append) *slist_append;
    __typeof__(curl_slist_free_all) *slist_free_all;
};

/* Loads and begins it, once and for good. NULL: it is not installed. */
const struct curl_calls *curl_calls(void);
