/*
 * Questions to evenkeeld's API that the verbs of evenkeelctl share: which server is meant, its row
 * in the list, and a wait until it is ready. A failed call becomes an exit status and a line on
 * stderr here, so that all verbs say it alike.
 */
#include "supervisor/ctl/calls.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/exits.h"

#define LOOKS_DOWN 6 /* three seconds, in which a start is taken up */

int calls_failed(const struct api *a, int r)
{
    (void)fprintf(stderr, "evenkeelctl: %s\n", r == -ENOMEM ? "Out of memory." : a->error);
    return r == -ECONNREFUSED ? CTL_UNREACHED : CTL_REFUSED;
}

const json_t *calls_find(const json_t *answer, const char *name)
{
    const json_t *list = json_object_get(answer, "servers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        const char *is = json_string_value(json_object_get(s, "name"));
        if (is && strcmp(is, name) == 0)
            return s;
    }
    return NULL;
}

const char *calls_only(const json_t *answer)
{
    const json_t *list = json_object_get(answer, "servers");
    size_t count = json_array_size(list);
    if (count == 1)
        return json_string_value(json_object_get(json_array_get(list, 0), "name"));
    if (count == 0) {
        (void)fprintf(stderr, "evenkeelctl: There is no server yet; evenkeelctl status says how to "
                              "begin.\n");
        return NULL;
    }
    (void)fprintf(stderr, "evenkeelctl: There are %zu servers; name one with --server:", count);
    for (size_t i = 0; i < count; i++) {
        const char *is = json_string_value(json_object_get(json_array_get(list, i), "name"));
        (void)fprintf(stderr, " %s", is ? is : "?");
    }
    (void)fprintf(stderr, "\n");
    return NULL;
}

int calls_server(struct api *a, const char *method, const char *name, const char *what,
                 const json_t *body, json_t **ret_answer)
{
    char path[400];
    json_t *answer = NULL;
    char *escaped = curl_easy_escape(a->curl, name, 0);
    if (!escaped)
        return -ENOMEM;
    int n = snprintf(path, sizeof(path), "/api/v1/servers/%s/%s", escaped, what);
    curl_free(escaped);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        (void)snprintf(a->error, sizeof(a->error), "The server's name is too long.");
        return -EBADMSG;
    }
    int r = api_call(a, method, path, body, &answer);
    if (r == 0 && ret_answer)
        *ret_answer = answer;
    else
        json_decref(answer);
    return r;
}

const json_t *calls_row(struct api *a, const char *name, json_t **ret_list)
{
    *ret_list = NULL;
    if (api_call(a, "GET", "/api/v1/servers", NULL, ret_list) < 0)
        return NULL;
    return calls_find(*ret_list, name);
}

bool calls_wait_ready(struct api *a, const char *name, json_int_t before, double seconds)
{
    uint64_t until = ek_now_us() + (uint64_t)(seconds * 1e6);
    const struct timespec pause = {0, 500000000};
    bool tried = false; /* it was down, and was started */
    uint32_t looks_down = 0;
    while (ek_now_us() < until) {
        json_t *list;
        const json_t *s = calls_row(a, name, &list);
        bool ready = json_is_true(json_object_get(s, "ready")) &&
                     json_integer_value(json_object_get(s, "pid")) != before;
        const char *state = json_string_value(json_object_get(s, "state"));
        bool down = state && strcmp(state, "breaker_open") == 0;
        tried |= state && !down;
        json_decref(list);
        if (ready)
            return true;
        if (down && (tried || ++looks_down > LOOKS_DOWN))
            return false;
        (void)nanosleep(&pause, NULL); /* shorter by a signal: then it asks sooner */
    }
    return false;
}
