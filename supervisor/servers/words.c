#include "supervisor/servers/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/config/options.h"
#include "supervisor/law/remedy.h"
#include "supervisor/law/trial.h"

#define START_LIMITS "EVENKEEL_START_LIMITS=" /* server/start_limits.h */
#define ALLOC_CONF   "PYTORCH_CUDA_ALLOC_CONF="

void words_done(struct start_words *w)
{
    remedy_free(w->argv);
    free(w->env);
    explicit_bzero(w->key, sizeof(w->key));
    w->argv = w->env = NULL;
}

void words_add_key(struct start_words *w, const char *name, const char *key)
{
    size_t n = 0;
    while (w->env[n])
        n++;
    (void)snprintf(w->key, sizeof(w->key), "%s=%s", name, key); /* both are bounded */
    w->env[n] = w->key;
}

void words_add_limits(struct start_words *w, const char *limits)
{
    size_t n = 0;
    while (w->env[n])
        n++;
    (void)snprintf(w->limits, sizeof(w->limits), START_LIMITS "%.120s", limits);
    if (limits[0])
        w->env[n] = w->limits;
}

static int make_env(const struct server_config *c, bool expandable, struct start_words *w)
{
    const struct ek_strings *e = &c->env;
    size_t n = 0;
    w->env = calloc(e->count + 6, sizeof(*w->env));
    if (!w->env)
        return -ENOMEM;
    if (c->devices) { /* the numbers are NVML's, in the order of the bus */
        static char order[] = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
        (void)snprintf(w->devices, sizeof(w->devices), "CUDA_VISIBLE_DEVICES=%s", c->devices);
        w->env[n++] = order;
        w->env[n++] = w->devices;
    }
    (void)snprintf(w->added, sizeof(w->added), ALLOC_CONF "expandable_segments:True");
    for (size_t i = 0; i < e->count; i++) {
        if (expandable && strncmp(e->at[i], ALLOC_CONF, sizeof(ALLOC_CONF) - 1) == 0)
            (void)snprintf(w->added, sizeof(w->added), "%.400s,expandable_segments:True", e->at[i]);
        else
            w->env[n++] = e->at[i];
    }
    if (expandable)
        w->env[n] = w->added;
    return 0;
}

bool words_expandable(const struct ek_strings *env)
{
    for (size_t i = 0; i < env->count; i++) {
        if (strncmp(env->at[i], ALLOC_CONF, sizeof(ALLOC_CONF) - 1) == 0 &&
            strstr(env->at[i], "expandable_segments:"))
            return true;
    }
    return false;
}

int words_make(const struct server_config *c, const struct trial *trial,
               const struct remedy_settings *caps, struct start_words *w)
{
    char **tried = NULL;
    *w = (struct start_words){0};
    int r = make_env(c, caps->expandable && !words_expandable(&c->env), w);
    if (r == 0)
        r = trial_argv(trial, c->argv, &tried);
    if (r == 0)
        r = remedy_argv(c->dialect, tried, caps, &w->argv);
    remedy_free(tried);
    if (r < 0)
        words_done(w);
    return r;
}
