/* Finds libcurl and its functions when they are needed (curl_calls.h). Called by tracer.c. */
#include "server/net/curl_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

static struct curl_calls g_calls;
static bool g_good;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

#define FIND(field, name)                                                                          \
    (*(void **)&g_calls.field = dlsym(lib, name), good = good && g_calls.field)

static void curl_calls_load(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *lib = NULL;
    bool good = true;

    for (size_t i = 0; !lib && i < sizeof(names) / sizeof(names[0]); i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    FIND(global_init, "curl_global_init");
    FIND(easy_init, "curl_easy_init");
    FIND(easy_setopt, "curl_easy_setopt");
    FIND(easy_perform, "curl_easy_perform");
    FIND(easy_getinfo, "curl_easy_getinfo");
    FIND(easy_reset, "curl_easy_reset");
    FIND(easy_cleanup, "curl_easy_cleanup");
    FIND(easy_strerror, "curl_easy_strerror");
    FIND(slist_append, "curl_slist_append");
    FIND(slist_free_all, "curl_slist_free_all");
    g_good = good && g_calls.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

const struct curl_calls *curl_calls(void)
{
    (void)pthread_once(&g_once, curl_calls_load);
    return g_good ? &g_calls : NULL;
}
