/* Options of access, see shell.h. */
#include "server/shell.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/shell.h"
#include "server/options.h"

#define KEY_ENV "VLLM_API_KEY"

static void hide(char *s)
{
    memset(s, '*', strlen(s));
}

/* As in vLLM the variable counts when no flag is given. */
static int take_env(struct options *o)
{
    char *key = getenv(KEY_ENV);
    if (!key)
        return 0;
    if (*key && o->api_key.count == 0) {
        o->api_key.at = calloc(1, sizeof(*o->api_key.at));
        if (!o->api_key.at || !(o->api_key.at[0] = strdup(key)))
            return -ENOMEM;
        o->api_key.count = 1;
    }
    hide(key);
    (void)unsetenv(KEY_ENV);
    return 0;
}

int shell_hide(struct options *o, int argc, char **argv)
{
    static const char *const flags[] = {"--api-key", "--api_key"};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        for (size_t k = 0; k < sizeof(flags) / sizeof(flags[0]); k++) {
            size_t n = strlen(flags[k]);
            if (strncmp(argv[i], flags[k], n) != 0)
                continue;
            char after = argv[i][n]; /* --api-key-file is another flag */
            if (after == '=')
                hide(argv[i] + n + 1);
            while (after == '\0' && i + 1 < argc && argv[i + 1][0] != '-')
                hide(argv[++i]);
            break;
        }
    }
    return take_env(o);
}

void shell_params(const struct options *o, struct http_shell *ret_shell)
{
    *ret_shell = (struct http_shell){
        .keys = {.keys = (const char *const *)o->api_key.at,
                 .key_count = o->api_key.count,
                 .files = (const char *const *)o->api_key_file.at,
                 .file_count = o->api_key_file.count,
                 .credentials = getenv("CREDENTIALS_DIRECTORY"),
                 .concurrency = (uint32_t)o->api_key_max_concurrency,
                 .queue_share = o->api_key_queue_share},
        .require_key = o->require_api_key,
        .protect_metrics = o->protect_metrics,
    };
}

void shell_forget(struct options *o)
{
    for (size_t i = 0; i < o->api_key.count; i++)
        explicit_bzero(o->api_key.at[i], strlen(o->api_key.at[i]));
}
