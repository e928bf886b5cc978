/* `evenkeelctl debug on|off`: every sample and what the controller made of it, for a while, in the
 * journal. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/verb.h"

struct debug_options {
    char *socket;
    double for_s;
};

#define AT(field) offsetof(struct debug_options, field)
static const struct ek_opt table[] = {
    {.name = "for",
     .type = OPT_SECONDS,
     .at = AT(for_s),
     .min = 1,
     .max = 86400,
     .def = "600",
     .help = "How long, like 10m; then the log is as configured again."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static int debug_ask(const struct debug_options *o, bool on)
{
    struct api a;
    json_t *body = json_pack("{s:f}", "for_s", on ? o->for_s : 0.0), *answer = NULL;
    int r = api_open(&a, o->socket);
    if (r == 0)
        r = body ? api_call(&a, "POST", "/api/v1/debug", body, &answer) : -ENOMEM;
    if (r < 0)
        (void)fprintf(stderr, "evenkeelctl: %s\n", r == -ENOMEM ? "Out of memory." : a.error);
    else if (on)
        (void)printf("Every sample is logged for %.0f s: journalctl -fu evenkeeld\n", o->for_s);
    else
        (void)puts("The log is as configured again.");
    json_decref(body);
    json_decref(answer);
    api_close(&a);
    return r == 0 ? CTL_OK : r == -ECONNREFUSED ? CTL_UNREACHED : CTL_REFUSED;
}

static int debug_run(void *options, char *word)
{
    const bool on = word && strcmp(word, "on") == 0;

    if (on || (word && strcmp(word, "off") == 0))
        return debug_ask(options, on);
    (void)fprintf(stderr, "evenkeelctl debug: say on or off\n");
    return CTL_USAGE;
}

const struct verb verb_debug = {.name = "debug",
                                .word = "on|off",
                                .words = "on|off",
                                .about = "each sample and what came of it in the log",
                                .help = "Lets evenkeeld log each sample with the figures that the "
                                        "controller saw and what came of it.\n"
                                        "It ends by itself.",
                                .options = table,
                                .options_bytes = sizeof(struct debug_options),
                                .run = debug_run};
