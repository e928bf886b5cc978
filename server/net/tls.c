/*
 * Certificate and key of the API's address (tls.h). Called at start, at SIGHUP and for each new
 * connection.
 */
#include "server/net/tls.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gnutls/x509.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "server/net/bounds.h"

#define CHAIN_MOST 16u
#define RETIRE_US  (600 * EK_US_PER_S) /* longer than any handshake may take */

struct tls_chain {
    gnutls_pcert_st cert[CHAIN_MOST];
    unsigned count;
    gnutls_privkey_t key;
    time_t begins, ends;
    uint64_t retired_us;
    struct tls_chain *next; /* retired ones */
};

struct tls {
    pthread_mutex_t lock;
    struct tls_source src;
    struct tls_chain *now;     /* under lock */
    struct tls_chain *retired; /* of the thread that reloads */
    struct ek_buf ca;
};

/* GnuTLS gives its callback no context: the one of this thread's daemon. */
static _Thread_local struct tls *of_thread;

void tls_chain_free(struct tls_chain *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->count; i++)
        gnutls_pcert_deinit(&c->cert[i]);
    if (c->key)
        gnutls_privkey_deinit(c->key);
    free(c);
}

static void tls_forget(struct ek_buf *text)
{
    if (text->data)
        explicit_bzero(text->data, text->cap);
    ek_buf_done(text);
}

static gnutls_datum_t datum(const struct ek_buf *b)
{
    return (gnutls_datum_t){(unsigned char *)b->data, (unsigned)b->len};
}

static int read_chain(struct tls_chain *c, const char *path, const struct ek_buf *text,
                      struct ek_fault *fault)
{
    gnutls_x509_crt_t leaf;
    gnutls_datum_t d = datum(text);
    c->count = CHAIN_MOST;
    int r = gnutls_pcert_list_import_x509_raw(c->cert, &c->count, &d, GNUTLS_X509_FMT_PEM,
                                              GNUTLS_X509_CRT_LIST_SORT);
    if (r < 0) {
        c->count = 0;
        return ek_fault_set(fault, "ssl-certfile",
                            "--ssl-certfile: %s has no chain of certificates in PEM (%s); the "
                            "server's own comes first, then those that signed it",
                            path, gnutls_strerror(r));
    }
    r = gnutls_pcert_export_x509(&c->cert[0], &leaf);
    if (r < 0)
        return ek_fault_set(fault, "ssl-certfile", "--ssl-certfile: %s: %s", path,
                            gnutls_strerror(r));
    c->begins = gnutls_x509_crt_get_activation_time(leaf);
    c->ends = gnutls_x509_crt_get_expiration_time(leaf);
    gnutls_x509_crt_deinit(leaf);
    return 0;
}

static int tls_read_key(struct tls_chain *c, const char *path, const struct ek_buf *text,
                        struct ek_fault *fault)
{
    gnutls_datum_t d = datum(text);
    int r = gnutls_privkey_init(&c->key);
    if (r == 0)
        r = gnutls_privkey_import_x509_raw(c->key, &d, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (r == GNUTLS_E_DECRYPTION_FAILED || strstr(text->data ? text->data : "", "ENCRYPTED"))
        return ek_fault_set(fault, "ssl-keyfile",
                            "--ssl-keyfile: the key in %s is encrypted; write it without a "
                            "passphrase (openssl pkey -in %s) and protect the file",
                            path, path);
    if (r < 0)
        return ek_fault_set(fault, "ssl-keyfile",
                            "--ssl-keyfile: %s has no private key in PEM (%s)", path,
                            gnutls_strerror(r));
    return 0;
}

/* The key is that of the certificate. */
static int check_pair(const struct tls_chain *c, const struct tls_source *src,
                      struct ek_fault *fault)
{
    unsigned char own[64], its[64];
    size_t own_len = sizeof(own), its_len = sizeof(its);
    gnutls_pubkey_t pub;
    int r = gnutls_pubkey_init(&pub);
    if (r < 0)
        return -ENOMEM;
    r = gnutls_pubkey_import_privkey(pub, c->key, 0, 0);
    if (r == 0)
        r = gnutls_pubkey_get_key_id(pub, 0, own, &own_len);
    if (r == 0)
        r = gnutls_pubkey_get_key_id(c->cert[0].pubkey, 0, its, &its_len);
    gnutls_pubkey_deinit(pub);
    if (r == 0 && own_len == its_len && memcmp(own, its, own_len) == 0)
        return 0;
    return ek_fault_set(fault, "ssl-keyfile",
                        "--ssl-keyfile: the key in %s is not that of the certificate in %s; give "
                        "the two that were made together",
                        src->key ? src->key : src->cert, src->cert);
}

static void warn_times(const struct tls_chain *c, const char *path)
{
    time_t now = (time_t)(ek_wall_us() / EK_US_PER_S);
    if (now > c->ends)
        ek_log(EK_LOG_WARNING, "The certificate in %s has expired: clients will refuse it", path);
    else if (now < c->begins)
        ek_log(EK_LOG_WARNING, "The certificate in %s is not valid yet: clients will refuse it",
               path);
    else if (c->ends - now < 14 * 86400)
        ek_log(EK_LOG_WARNING,
               "The certificate in %s expires in %lld days; replace it and send "
               "SIGHUP",
               path, (long long)(c->ends - now) / 86400);
}

/* An ek_file_read(), or ek_file_read_again(). */
typedef int (*tls_file_fn)(const char *what, const char *path, size_t most, struct ek_buf *out,
                           struct ek_fault *fault);

static int tls_load(const struct tls_source *src, tls_file_fn read, struct tls_chain **ret_chain,
                    struct ek_fault *fault)
{
    struct ek_buf cert = {0}, key = {0};
    struct tls_chain *c = calloc(1, sizeof(*c));
    int r = c ? 0 : -ENOMEM;
    if (r == 0)
        r = read("--ssl-certfile", src->cert, BOUND_PEM_BYTES, &cert, fault);
    if (r == 0)
        r = read("--ssl-keyfile", src->key ? src->key : src->cert, BOUND_PEM_BYTES, &key, fault);
    if (r == 0)
        r = read_chain(c, src->cert, &cert, fault);
    if (r == 0)
        r = tls_read_key(c, src->key ? src->key : src->cert, &key, fault);
    if (r == 0)
        r = check_pair(c, src, fault);
    tls_forget(&cert);
    tls_forget(&key);
    if (r < 0) {
        tls_chain_free(c);
        return r;
    }
    *ret_chain = c;
    return 0;
}

static int load_ca(struct tls *t, struct ek_fault *fault)
{
    gnutls_x509_crt_t *list = NULL;
    unsigned count = 0;
    if (!t->src.ca)
        return 0;
    int r = ek_file_read("--ssl-ca-certs", t->src.ca, BOUND_PEM_BYTES, &t->ca, fault);
    if (r < 0)
        return r;
    gnutls_datum_t d = datum(&t->ca);
    int got = gnutls_x509_crt_list_import2(&list, &count, &d, GNUTLS_X509_FMT_PEM, 0);
    for (unsigned i = 0; got >= 0 && i < count; i++)
        gnutls_x509_crt_deinit(list[i]);
    if (got >= 0)
        gnutls_free(list);
    return got >= 0 ? 0
                    : ek_fault_set(fault, "ssl-ca-certs",
                                   "--ssl-ca-certs: %s has no certificate in PEM (%s)", t->src.ca,
                                   gnutls_strerror(got));
}

int tls_new(const struct tls_source *src, struct tls **ret_tls, struct ek_fault *fault)
{
    *ret_tls = NULL;
    if (!src->cert)
        return 0;
    struct tls *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->src = *src;
    int r = -pthread_mutex_init(&t->lock, NULL);
    if (r == 0)
        r = tls_load(&t->src, ek_file_read, &t->now, fault);
    if (r == 0)
        r = load_ca(t, fault);
    if (r < 0) {
        tls_free(t);
        return r;
    }
    warn_times(t->now, t->src.cert);
    *ret_tls = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    for (struct tls_chain *c = t->retired, *next; c; c = next) {
        next = c->next;
        tls_chain_free(c);
    }
    tls_chain_free(t->now);
    ek_buf_done(&t->ca);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int tls_read(struct tls *t, struct tls_chain **ret_chain, struct ek_fault *fault)
{
    *ret_chain = NULL;
    return t ? tls_load(&t->src, ek_file_read_again, ret_chain, fault) : 0;
}

void tls_take(struct tls *t, struct tls_chain *fresh)
{
    if (!fresh)
        return;
    warn_times(fresh, t->src.cert);
    pthread_mutex_lock(&t->lock);
    struct tls_chain *old = t->now;
    t->now = fresh;
    pthread_mutex_unlock(&t->lock);
    uint64_t now = ek_now_us();
    old->retired_us = now;
    old->next = t->retired;
    t->retired = old;
    for (struct tls_chain **at = &t->retired; *at;) {
        struct tls_chain *c = *at;
        if (now - c->retired_us <= RETIRE_US) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        tls_chain_free(c);
    }
}

int tls_certificate(gnutls_session_t session, const gnutls_datum_t *req_ca_dn, int nreqs,
                    const gnutls_pk_algorithm_t *pk_algos, int pk_algos_length,
                    gnutls_pcert_st **pcert, unsigned int *pcert_length, gnutls_privkey_t *privkey)
{
    struct tls *t = of_thread;
    (void)session;
    (void)req_ca_dn;
    (void)nreqs;
    (void)pk_algos;
    (void)pk_algos_length;
    if (!t)
        return -1;
    pthread_mutex_lock(&t->lock);
    *pcert = t->now->cert;
    *pcert_length = t->now->count;
    *privkey = t->now->key;
    pthread_mutex_unlock(&t->lock);
    return 0;
}

void tls_enter(struct tls *t)
{
    of_thread = t;
}

const char *tls_ca(const struct tls *t)
{
    return t && t->src.clients != TLS_CLIENTS_ANY ? t->ca.data : NULL;
}

bool tls_client_is_good(const struct tls *t, gnutls_session_t session)
{
    unsigned status = 0, count = 0;
    if (!t || t->src.clients == TLS_CLIENTS_ANY)
        return true;
    if (!gnutls_certificate_get_peers(session, &count) || count == 0)
        return t->src.clients == TLS_CLIENTS_KNOWN_OR_NONE;
    return gnutls_certificate_verify_peers2(session, &status) == 0 && status == 0;
}

uint64_t tls_expires_s(struct tls *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t at = (uint64_t)t->now->ends;
    pthread_mutex_unlock(&t->lock);
    return at;
}
