/*
 * TLS of the API's address: certificate and key from PEM files, read again on SIGHUP. GnuTLS and
 * libmicrohttpd do the rest; TLS 1.2 and 1.3.
 *
 * Owner: struct http. The current certificate is under a lock; one that was replaced lives on while
 * a handshake may still use it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

struct ek_fault;
struct tls;
struct tls_chain; /* certificates with their key */

#define TLS_PRIORITIES "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

enum tls_clients { TLS_CLIENTS_ANY, TLS_CLIENTS_KNOWN_OR_NONE, TLS_CLIENTS_KNOWN };

struct tls_source {
    const char *cert, *key; /* files; cert NULL = no TLS; key NULL = in the certificate's file */
    const char *ca; /* file of the authorities of clients' certificates, NULL = clients need none */
    enum tls_clients clients;
};

/* *ret_tls = NULL when there is no certificate. -EBADMSG with a fault, -ENOMEM. */
int tls_new(const struct tls_source *src, struct tls **ret_tls, struct ek_fault *fault);
void tls_free(struct tls *t);
/* A reload in two steps, so that nothing changes until all that belongs to it was read: reads the
 * files again without using them (*ret_chain = NULL where t is NULL), then puts them into force.
 * The chain is the caller's until tls_take(). */
int tls_read(struct tls *t, struct tls_chain **ret_chain, struct ek_fault *fault);
void tls_take(struct tls *t, struct tls_chain *fresh); /* NULL: nothing to take */
void tls_chain_free(struct tls_chain *c);

/* For MHD_OPTION_HTTPS_CERT_CALLBACK, in a thread that has called tls_enter() before. */
gnutls_certificate_retrieve_function2 tls_certificate;
void tls_enter(struct tls *t);
/* The text of the CA file, NULL = none; lives as long as t. */
const char *tls_ca(const struct tls *t);
/* Whether the client of a session has shown what it must. */
bool tls_client_is_good(const struct tls *t, gnutls_session_t session);
/* When the certificate ends, seconds since 1970. */
uint64_t tls_expires_s(struct tls *t);
