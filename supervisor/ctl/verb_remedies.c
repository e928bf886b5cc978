/*
 * `evenkeelctl remedies [forget]`: what running out of memory taught each server, which is what it
 * is started with for a day, and the end of that.
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/show.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

struct remedies_options {
    char *server, *socket;
    bool json;
};

#define AT(field) offsetof(struct remedies_options, field)
static const struct ek_opt table[] = {
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "Only this one; without it all of them."},
    {.name = "json",
     .alias = "j",
     .type = OPT_BOOL,
     .at = AT(json),
     .help = "Print a JSON object with a field for each server; null where nothing is in force."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static int show(const json_t *servers, const struct remedies_options *o)
{
    json_t *all = json_object(), *s;
    struct ek_buf out = {0};
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        if (!show_named(s, o->server))
            continue;
        (void)json_object_set(all, show_word(s, "name"), json_object_get(s, "learned"));
        if (!o->json)
            show_learned(s, 0, terminal_cols(), &out);
    }
    if (o->json) {
        char *text = json_dumps(all, JSON_INDENT(2));
        (void)ek_buf_printf(&out, "%s\n", text ? text : "");
        free(text);
    } else if (out.len == 0) {
        (void)ek_buf_puts(&out, "None: each server starts with its own flags.\n");
    } else {
        (void)ek_buf_puts(&out, "evenkeelctl remedies forget ends that; a restart then has its own "
                                "flags.\n");
    }
    json_decref(all);
    return verb_print_buf(&out);
}

static int remedies_forget(struct api *a, const json_t *servers, const struct remedies_options *o)
{
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        if (!show_named(s, o->server))
            continue;
        const char *name = show_word(s, "name");
        int r = calls_server(a, "POST", name, "forget", NULL, NULL);
        if (r < 0)
            return r;
        bool had = json_is_object(json_object_get(s, "learned"));
        if (!o->json)
            (void)printf("%s: %s\n", name,
                         had ? "its next start has its own flags; evenkeelctl restart does it now"
                             : "there was nothing to forget");
    }
    return 0;
}

static bool has_server(const json_t *servers, const char *name)
{
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        if (show_named(s, name))
            return true;
    }
    return !name; /* of none there is nothing to show */
}

static int remedies_ask(const struct remedies_options *o, bool forgets)
{
    struct api a;
    json_t *answer = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return CTL_REFUSED;
    int r = api_open(&a, o->socket), code = CTL_OK;
    if (r == 0)
        r = api_call(&a, "GET", "/api/v1/servers", NULL, &answer);
    const json_t *servers = json_object_get(answer, "servers");
    bool unknown = r == 0 && !has_server(servers, o->server);
    if (r == 0 && forgets && !unknown)
        r = remedies_forget(&a, servers, o);
    else if (r == 0 && !unknown)
        code = show(servers, o);
    if (unknown) {
        (void)fprintf(stderr,
                      "evenkeelctl: There is no server '%s'; evenkeelctl status lists "
                      "them.\n",
                      o->server);
        code = CTL_REFUSED;
    }
    if (r < 0) {
        (void)fprintf(stderr, "evenkeelctl: %s\n", a.error);
        code = r == -ECONNREFUSED ? CTL_UNREACHED : CTL_REFUSED;
    }
    json_decref(answer);
    api_close(&a);
    curl_global_cleanup();
    return code;
}

static int remedies_run(void *options, char *word)
{
    if (!word || strcmp(word, "forget") == 0)
        return remedies_ask(options, word != NULL);
    (void)fprintf(stderr, "evenkeelctl remedies: nothing or forget, not '%s'\n", word);
    return CTL_USAGE;
}

const struct verb verb_remedies = {
    .name = "remedies",
    .word = "[forget]",
    .words = "forget",
    .about = "flags that running out of memory taught; forget them",
    .help = "Shows with which flags, other than its own, each server starts since it ran out of\n"
            "memory, and for how long. With forget its next start has its own flags again, and\n"
            "each remedy may be tried anew; nothing is restarted for it.",
    .options = table,
    .options_bytes = sizeof(struct remedies_options),
    .run = remedies_run};
