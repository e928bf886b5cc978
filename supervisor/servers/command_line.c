/*
 * Puts a start's command line and environment together for launch.c, launch_unit.c and --dry-run:
 * the configuration, then the trial's flags, then what running out of memory taught. The
 * allocator's variable is merged with what the operator set, because a second value would replace
 * the first.
 */
#include "supervisor/servers/command_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/config/options.h"
#include "supervisor/config/options_table.h"
#include "supervisor/config/server_file.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/law/remedy.h"
#include "supervisor/law/trial.h"

#define START_LIMITS "EVENKEEL_START_LIMITS=" /* server/start_limits.h */
#define SEGMENTS     "expandable_segments:"

/* Which of them counts where several are set differs among releases of PyTorch. */
static const char *const words_alloc[COMMAND_LINE_ALLOC] = {
    "PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=", "PYTORCH_HIP_ALLOC_CONF="};

void command_line_done(struct command_line *w)
{
    remedy_free(w->argv);
    free(w->env);
    for (int i = 0; i < COMMAND_LINE_ALLOC; i++)
        free(w->alloc[i]);
    memset(w->alloc, 0, sizeof(w->alloc));
    explicit_bzero(w->key, sizeof(w->key));
    w->argv = w->env = NULL;
}

void command_line_add_key(struct command_line *w, const char *name, const char *key)
{
    size_t n = 0;
    while (w->env[n])
        n++;
    (void)snprintf(w->key, sizeof(w->key), "%s=%s", name, key); /* both are bounded */
    w->env[n] = w->key;
}

void command_line_add_limits(struct command_line *w, const char *limits)
{
    size_t n = 0;
    while (w->env[n])
        n++;
    (void)snprintf(w->limits, sizeof(w->limits), START_LIMITS "%.120s", limits);
    if (limits[0])
        w->env[n] = w->limits;
}

/* What the operator set a variable to ("NAME="): in the configuration, or in evenkeeld's own
 * environment, which its children inherit. NULL if in neither. */
static const char *operators(const struct server_config *c, const char *name)
{
    size_t len = strlen(name);
    char plain[40];
    for (size_t i = 0; i < c->env.count; i++) {
        if (strncmp(c->env.at[i], name, len) == 0)
            return c->env.at[i] + len;
    }
    (void)snprintf(plain, sizeof(plain), "%.*s", (int)len - 1, name);
    return c->unit ? NULL : getenv(plain);
}

static bool is_alloc(const char *entry)
{
    for (int i = 0; i < COMMAND_LINE_ALLOC; i++) {
        if (strncmp(entry, words_alloc[i], strlen(words_alloc[i])) == 0)
            return true;
    }
    return false;
}

/* Each of these variables that the operator set has it behind what it said; without any, the first
 * has it, which every release of PyTorch reads. */
static int add_segments(const struct server_config *c, struct command_line *w, size_t *n)
{
    size_t begin = *n;
    for (int i = 0; i <= COMMAND_LINE_ALLOC; i++) {
        bool last = i == COMMAND_LINE_ALLOC;
        const char *name = words_alloc[last ? 0 : i], *has = last ? "" : operators(c, name);
        if (last ? *n > begin : !has)
            continue;
        char **text = &w->alloc[last ? 0 : i];
        if (asprintf(text, "%s%s%s" SEGMENTS "True", name, has, *has ? "," : "") < 0) {
            *text = NULL;
            return -ENOMEM;
        }
        w->env[(*n)++] = *text;
    }
    return 0;
}

static int make_env(const struct server_config *c, bool expandable, struct command_line *w)
{
    const struct ek_strings *e = &c->env;
    size_t n = 0;
    w->env = calloc(e->count + 5 + COMMAND_LINE_ALLOC, sizeof(*w->env));
    if (!w->env)
        return -ENOMEM;
    if (c->devices) { /* the numbers are NVML's, in the order of the bus */
        static char order[] = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
        (void)snprintf(w->devices, sizeof(w->devices), "CUDA_VISIBLE_DEVICES=%s", c->devices);
        w->env[n++] = order;
        w->env[n++] = w->devices;
    }
    for (size_t i = 0; i < e->count; i++) {
        if (!expandable || !is_alloc(e->at[i]))
            w->env[n++] = e->at[i];
    }
    return expandable ? add_segments(c, w, &n) : 0;
}

/* Memory that a connector registered, or that sleep gives back, may not move: such a vLLM refuses
 * to start with expandable segments. */
static bool keeps_addresses(const struct server_config *c)
{
    static const char *const flags[] = {"--kv-transfer-config", "--enable-sleep-mode"};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (config_has_string(&c->args, flags[i]) || config_has_string(&c->command, flags[i]))
            return true;
    }
    return false;
}

bool command_line_segments_settled(const struct server_config *c)
{
    for (int i = 0; i < COMMAND_LINE_ALLOC; i++) {
        const char *has = operators(c, words_alloc[i]);
        if (has && strstr(has, SEGMENTS))
            return true;
    }
    return keeps_addresses(c);
}

/* The configuration's command line with what is tried. */
static int words_trial(const struct server_config *c, const struct trial *trial,
                       struct remedy_settings *ret_file, char ***ret_argv)
{
    struct remedy_settings has;
    server_file_settings(c->dialect, c->argv, ret_file);
    remedy_read(c->dialect, c->argv, ret_file, &has);
    const struct trial within = trial_within(trial, &has);
    return trial_argv(&within, c->argv, ret_argv);
}

int command_line_make(const struct server_config *c, const struct trial *trial,
                      const struct remedy_settings *caps, struct command_line *w)
{
    char **tried = NULL;
    *w = (struct command_line){0};
    int r = make_env(c, caps->expandable && !command_line_segments_settled(c), w);
    if (r == 0)
        r = words_trial(c, trial, &w->file, &tried);
    if (r == 0) {
        struct remedy_settings has;
        remedy_read(c->dialect, tried, &w->file, &has);
        r = remedy_argv(c->dialect, tried, &has, caps, &w->argv);
    }
    if (r == 0)
        remedy_read(c->dialect, w->argv, &w->file, &w->running);
    remedy_free(tried);
    if (r < 0)
        command_line_done(w);
    return r;
}

void command_line_cannot_run(const struct server_config *c, const char *program, int error,
                             char *ret_text, size_t size)
{
    bool lacks = error == -ENOENT && c->dialect->module && !strchr(program, '/');
    (void)snprintf(ret_text, size, "cannot run %.120s%s", program,
                   lacks ? ", which is not in PATH (`program` or --program names it, or the python "
                           "of its environment)"
                         : "");
}
