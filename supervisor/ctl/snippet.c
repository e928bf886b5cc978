/*
 * Writes what `evenkeelctl snippet` prints: the list of servers as entries for HAProxy, Envoy, the
 * routers of vLLM and llm-d, and Prometheus. A table of forms, one function for each;
 * verb_snippet.c brings the list from evenkeeld.
 */
#include "supervisor/ctl/snippet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"

const char snippet_forms[] = "haproxy|prometheus|envoy|vllm-router|llm-d";

/* One server as others see it. */
struct snippet_place {
    const char *name, *model, *host;
    char port[8], agent[8]; /* agent: of the agent-check, "" = none */
};

typedef void (*place_fn)(const struct snippet_place *p, struct ek_buf *out);

/* The digits behind the last colon of ADDRESS:PORT or http://ADDRESS:PORT. */
static void port_of(const char *at, char ret_port[8])
{
    const char *colon = at ? strrchr(at, ':') : NULL;
    size_t n = colon ? strspn(colon + 1, "0123456789") : 0;
    ret_port[0] = '\0';
    if (n > 0 && n < 8)
        (void)snprintf(ret_port, 8, "%.*s", (int)n, colon + 1);
}

static const char *snippet_text_of(const json_t *server, const char *key)
{
    const char *s = json_string_value(json_object_get(server, key));
    return s ? s : "";
}

static void snippet_quoted(struct ek_buf *out, const char *s)
{
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, s, strlen(s));
    (void)ek_buf_puts(out, "\"");
}

static void haproxy(const struct snippet_place *p, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "    server %s-%s %s:%s weight 100 check inter 1s fastinter 200ms",
                        p->host, p->name, p->host, p->port);
    if (p->agent[0])
        (void)ek_buf_printf(out, " agent-check agent-addr %s agent-port %s agent-inter 1s", p->host,
                            p->agent);
    (void)ek_buf_puts(out, "\n");
}

static void envoy(const struct snippet_place *p, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "    - endpoint: {address: {socket_address: {address: %s, port_value: "
                        "%s}}} # %s\n",
                        p->host, p->port, p->name);
}

static void vllm_router(const struct snippet_place *p, struct ek_buf *out)
{
    (void)ek_buf_printf(out, " http://%s:%s", p->host, p->port);
}

static void llm_d(const struct snippet_place *p, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "- name: %s-%s\n  address: \"%s\" # llm-d wants digits here\n"
                        "  port: \"%s\"\n  labels: {llm-d.ai/engine-type: vllm, model: ",
                        p->host, p->name, p->host, p->port);
    snippet_quoted(out, p->model);
    (void)ek_buf_puts(out, "}\n");
}

static void target(const struct snippet_place *p, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "- targets: [\"%s:%s\"]\n  labels: {job: evenkeel-server, host: \"%s\", "
                        "server: %s}\n",
                        p->host, p->port, p->host, p->name);
}

static int snippet_each(const json_t *list, const char *host, place_fn put, struct ek_buf *out)
{
    int found = 0;
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        struct snippet_place p = {
            .name = snippet_text_of(v, "name"), .model = snippet_text_of(v, "model"), .host = host};
        port_of(snippet_text_of(v, "url"), p.port);
        port_of(snippet_text_of(v, "edge"), p.agent);
        if (!p.port[0])
            continue;
        put(&p, out);
        found++;
    }
    return found;
}

int snippet_write(const char *form, const json_t *servers, const char *host, struct ek_buf *out)
{
    static const struct {
        const char *name, *head, *tail;
        place_fn put;
    } forms[] = {
        {"haproxy",
         "# in a backend or listen section, mode http; the balance algorithm must use weights\n"
         "    # 503 while it loads, drains or has failed, when its port still answers.\n"
         "    option httpchk GET /health\n"
         "    http-check expect status 200\n"
         "    # What is refused before that was seen goes to another one. Only a request that is "
         "in\n"
         "    # one buffer as a whole (tune.bufsize, 16 kB by default) can be asked again.\n"
         "    option http-buffer-request\n"
         "    retries 3\n"
         "    option redispatch 1\n"
         "    retry-on conn-failure 503\n",
         "", haproxy},
        {"prometheus", "# a file for file_sd_configs\n", "", target},
        {"envoy", "# below load_assignment.endpoints of a cluster\n- lb_endpoints:\n", "", envoy},
        {"vllm-router", "vllm-router --worker-urls", "\n", vllm_router},
        {"llm-d", "# endpoints of file-discovery\n", "", llm_d},
    };
    char page[8];
    size_t f = 0;
    while (f < sizeof(forms) / sizeof(forms[0]) && strcmp(forms[f].name, form) != 0)
        f++;
    if (f == sizeof(forms) / sizeof(forms[0]))
        return -EINVAL;
    (void)ek_buf_puts(out, forms[f].head);
    if (snippet_each(json_object_get(servers, "servers"), host, forms[f].put, out) == 0)
        return -ENOENT;
    (void)ek_buf_puts(out, forms[f].tail);
    port_of(snippet_text_of(servers, "listen"), page);
    if (strcmp(form, "prometheus") == 0 && page[0])
        (void)ek_buf_printf(out,
                            "- targets: [\"%s:%s\"]\n  labels: {job: evenkeeld, host: \"%s\"}\n",
                            host, page, host);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
