/* From options to access to the server (access_options.h). Called once by main.c. */
#include "server/access_options.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/err.h"
#include "server/net/access.h"
#include "server/options.h"

#define KEY_ENV "VLLM_API_KEY"

static void server_access_options_hide(char *s)
{
    memset(s, '*', strlen(s));
}

/* For who reads the process's environment. */
static void drop_env(const char *name)
{
    char *value = getenv(name);

    if (!value)
        return;
    server_access_options_hide(value);
    (void)unsetenv(name);
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
    drop_env(KEY_ENV);
    return 0;
}

int access_options_hide(struct options *o, int argc, char **argv)
{
    static const char *const flags[] = {"--api-key", "--api_key"};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        for (size_t k = 0; k < sizeof(flags) / sizeof(flags[0]); k++) {
            size_t n = strlen(flags[k]);
            if (strncmp(argv[i], flags[k], n) != 0)
                continue;
            char after = argv[i][n]; /* --api-key-file is another flag */
            if (after == '=')
                server_access_options_hide(argv[i] + n + 1);
            while (after == '\0' && i + 1 < argc && argv[i + 1][0] != '-')
                server_access_options_hide(argv[++i]);
            break;
        }
    }
    /* What an evenkeeld or a shell had for others, such as a vLLM: nothing here asks the hub. */
    drop_env("HF_TOKEN");
    drop_env("HUGGING_FACE_HUB_TOKEN");
    return take_env(o);
}

/* vLLM takes these lists as JSON: '["http://a", "http://b"]'. */
static int access_unpack(const char *flag, struct ek_strings *l, struct ek_fault *f)
{
    json_error_t e;
    struct ek_strings fresh = {0};
    if (l->count != 1 || l->at[0][0] != '[')
        return 0;
    json_t *json = json_loads(l->at[0], 0, &e);
    size_t n = json_array_size(json);
    int r = json ? 0 : -EBADMSG;
    if (r == 0 && !(fresh.at = calloc(n ? n : 1, sizeof(*fresh.at))))
        r = -ENOMEM;
    for (; fresh.count < n && r == 0; fresh.count++) {
        const char *s = json_string_value(json_array_get(json, fresh.count));
        fresh.at[fresh.count] = s ? strdup(s) : NULL;
        r = !s ? -EBADMSG : !fresh.at[fresh.count] ? -ENOMEM : 0;
    }
    json_decref(json);
    if (r == -EBADMSG)
        (void)ek_fault_set(f, flag, "--%s: '%.80s' is no JSON list of strings", flag, l->at[0]);
    struct ek_strings old = r == 0 ? *l : fresh;
    if (r == 0)
        *l = fresh;
    for (size_t i = 0; i < old.count; i++)
        free(old.at[i]);
    free(old.at);
    return r;
}

/* Something that a header can say. */
static int check_words(const char *flag, const struct ek_strings *l, struct ek_fault *f)
{
    for (size_t i = 0; i < l->count; i++) {
        const char *s = l->at[i];
        for (size_t k = 0; s[k]; k++) {
            if (s[k] <= ' ' || s[k] >= 0x7f)
                return ek_fault_set(f, flag,
                                    "--%s: '%.80s' has a character that is not visible ASCII; "
                                    "give each name as a word of its own",
                                    flag, s);
        }
        if (!*s)
            return ek_fault_set(f, flag, "--%s: a name is empty", flag);
    }
    return 0;
}

static bool has_all(const struct ek_strings *l)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->at[i], "*") == 0)
            return true;
    }
    return false;
}

static int check_lists(struct options *o, struct ek_fault *f)
{
    const struct {
        const char *flag;
        struct ek_strings *list;
    } lists[] = {{"allowed-hosts", &o->allowed_hosts},
                 {"allowed-origins", &o->allowed_origins},
                 {"allowed-methods", &o->allowed_methods},
                 {"allowed-headers", &o->allowed_headers}};
    int r = 0;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]) && r == 0; i++) {
        r = access_unpack(lists[i].flag, lists[i].list, f);
        if (r == 0)
            r = check_words(lists[i].flag, lists[i].list, f);
    }
    return r;
}

int access_options_check(struct options *o, struct ek_fault *f)
{
    int r = check_lists(o, f);
    if (r < 0)
        return r;
    if ((o->ssl_keyfile || o->ssl_ca_certs || o->ssl_cert_reqs) && !o->ssl_certfile)
        return ek_fault_set(f, "ssl-certfile",
                            "--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need "
                            "--ssl-certfile FILE");
    if (o->ssl_cert_reqs && strcmp(o->ssl_cert_reqs, "0") != 0 && !o->ssl_ca_certs)
        return ek_fault_set(f, "ssl-cert-reqs",
                            "--ssl-cert-reqs %s needs --ssl-ca-certs FILE, which says whose "
                            "signature is good",
                            o->ssl_cert_reqs);
    size_t n = o->root_path ? strlen(o->root_path) : 0;
    if (n > 0 && (o->root_path[0] != '/' || n == 1 || o->root_path[n - 1] == '/'))
        return ek_fault_set(f, "root-path",
                            "--root-path %.80s: it begins with / and does not end with it, like "
                            "/llm",
                            o->root_path);
    if (has_all(&o->allowed_origins) && o->allow_credentials)
        return ek_fault_set(f, "allow-credentials",
                            "--allow-credentials and --allowed-origins * exclude each other: name "
                            "the origins");
    if (has_all(&o->allowed_origins) && (o->api_key.count || o->api_key_file.count))
        return ek_fault_set(f, "allowed-origins",
                            "--allowed-origins *: with API keys, name the origins that may use "
                            "them");
    return 0;
}

static struct http_list list(const struct ek_strings *l)
{
    return (struct http_list){(const char *const *)l->at, l->count};
}

static enum tls_clients clients_of(const struct options *o)
{
    if (!o->ssl_ca_certs || (o->ssl_cert_reqs && strcmp(o->ssl_cert_reqs, "0") == 0))
        return TLS_CLIENTS_ANY;
    bool optional = o->ssl_cert_reqs && strcmp(o->ssl_cert_reqs, "1") == 0;
    return optional ? TLS_CLIENTS_KNOWN_OR_NONE : TLS_CLIENTS_KNOWN;
}

void access_options_params(const struct options *o, struct http_access *ret_access)
{
    static const char *const all[] = {"*"};
    *ret_access = (struct http_access){
        .keys = {.keys = (const char *const *)o->api_key.at,
                 .key_count = o->api_key.count,
                 .files = (const char *const *)o->api_key_file.at,
                 .file_count = o->api_key_file.count,
                 .credentials = getenv("CREDENTIALS_DIRECTORY"),
                 .concurrency = (uint32_t)o->api_key_max_concurrency,
                 .queue_share = o->api_key_queue_share},
        .tls = {.cert = o->ssl_certfile,
                .key = o->ssl_keyfile,
                .ca = o->ssl_ca_certs,
                .clients = clients_of(o)},
        .require_key = o->require_api_key,
        .protect_metrics = o->protect_metrics,
        .web = o->web,
        .hosts = list(&o->allowed_hosts),
        .origins = list(&o->allowed_origins),
        .methods = list(&o->allowed_methods),
        .headers = list(&o->allowed_headers),
        .credentials = o->allow_credentials,
        .root_path = o->root_path,
        .each_peer = (uint32_t)o->max_connections_per_peer,
        .sse_keep_alive_s = o->sse_keep_alive,
    };
    if (ret_access->headers.count == 0)
        ret_access->headers = (struct http_list){all, 1};
    if (ret_access->methods.count == 0)
        ret_access->methods = (struct http_list){all, 1};
}

void access_options_forget(struct options *o)
{
    for (size_t i = 0; i < o->api_key.count; i++)
        explicit_bzero(o->api_key.at[i], strlen(o->api_key.at[i]));
}
