/*
 * `evenkeelctl endpoint-snippet`: what to write into the configuration of a balancer, a router or
 * Prometheus so that they find the servers of this machine.
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/snippet.h"
#include "supervisor/ctl/verb.h"

struct snippet_options {
    char *address, *server, *socket;
};

#define AT(field) offsetof(struct snippet_options, field)
static const struct ek_opt table[] = {
    {.name = "address",
     .type = OPT_STRING,
     .at = AT(address),
     .help = "Name or address under which others reach this machine; default: its host name."},
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "Only the entry of this server."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "The socket of evenkeeld."},
    {.name = NULL},
};

static bool is_host(const char *s)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";
    return *s && strlen(s) < 256 && s[strspn(s, good)] == '\0';
}

static int snippet_refuse(const char *msg)
{
    (void)fprintf(stderr, "evenkeelctl endpoint-snippet: %s\n", msg);
    return CTL_REFUSED;
}

/* Leaves only the server of this name in the answer. */
static void keep_one(json_t *answer, const char *name)
{
    json_t *list = json_object_get(answer, "servers");
    for (size_t i = json_array_size(list); name && i-- > 0;) {
        const json_t *is = json_object_get(json_array_get(list, i), "name");
        if (strcmp(json_is_string(is) ? json_string_value(is) : "", name) != 0)
            (void)json_array_remove(list, i); /* it is there */
    }
}

static int snippet_tell(const char *form, const char *host, const json_t *servers)
{
    struct ek_buf out = {0};
    int r = snippet_write(form, servers, host, &out);
    if (r == 0)
        return verb_print_buf(&out);
    ek_buf_done(&out);
    return snippet_refuse(r == -ENOENT ? "no server that is configured listens on TCP"
                                       : "out of memory");
}

static int snippet_ask(const struct snippet_options *o, const char *form, const char *host)
{
    struct api a;
    json_t *servers = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return CTL_REFUSED;
    int r = api_open(&a, o->socket);
    if (r == 0)
        r = api_call(&a, "GET", "/api/v1/servers", NULL, &servers);
    if (r == 0)
        keep_one(servers, o->server);
    bool none = r == 0 && o->server && json_array_size(json_object_get(servers, "servers")) == 0;
    int code =
        none     ? snippet_refuse("there is no server of that name; evenkeelctl status lists them")
        : r == 0 ? snippet_tell(form, host, servers)
                 : snippet_refuse(a.error);
    if (r == -ECONNREFUSED)
        code = CTL_UNREACHED;
    json_decref(servers);
    api_close(&a);
    curl_global_cleanup();
    return code;
}

static int snippet_check(const char *form)
{
    struct ek_buf out = {0};
    char msg[160];
    json_t *none = json_object();
    int r = form ? snippet_write(form, none, "", &out) : -EINVAL;
    json_decref(none);
    ek_buf_done(&out);
    if (r != -EINVAL)
        return CTL_OK;
    (void)snprintf(msg, sizeof(msg), "name a form: %s", snippet_forms);
    (void)snippet_refuse(msg);
    return CTL_USAGE;
}

static int snippet_run(void *options, char *form)
{
    const struct snippet_options *o = options;
    char name[256] = "localhost";
    int code = snippet_check(form);

    if (code != CTL_OK)
        return code;
    (void)gethostname(name, sizeof(name) - 1); /* too long for us is too long for others */
    const char *host = o->address ? o->address : name;
    if (is_host(host))
        return snippet_ask(o, form, host);
    (void)snippet_refuse("--address must be a host name or an IPv4 address");
    return CTL_USAGE;
}

const struct verb verb_snippet = {
    .name = "endpoint-snippet",
    .word = "FORM",
    .words = "haproxy|prometheus|envoy|vllm-router|llm-d",
    .about = "entries for haproxy, prometheus and routers",
    .help =
        "Prints what to write into the configuration of what stands in front of the servers of\n"
        "this machine, or reads their metrics: haproxy, prometheus (file_sd), envoy,\n"
        "vllm-router, llm-d (file-discovery).",
    .options = table,
    .options_bytes = sizeof(struct snippet_options),
    .run = snippet_run};
