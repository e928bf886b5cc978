/*
 * Reads one server's metrics page again and again: one request in flight, a total deadline, a cap
 * on the body; what comes out is a sample, also when nothing came (then it is not good). The next
 * reading starts poll seconds after the last one began, so a slow server is asked less often.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "supervisor/engines/sample.h"

struct client;
struct scrape;

enum scrape_result {
    SCRAPE_OK,
    SCRAPE_TIMEOUT,
    SCRAPE_REFUSED,
    SCRAPE_STATUS, /* not 200 */
    SCRAPE_TOO_LARGE,
    SCRAPE_BAD, /* no exposition */
    SCRAPE_ERROR,
    SCRAPE_RESULTS
};

struct scrape_setup {
    const struct dialect *dialect;
    const char *unix_path; /* NULL = TCP; both strings outlive the scrape */
    const char *url;
    const char *key; /* as struct client_req has it, looked at each time */
    uint64_t poll_us;
};

struct scrape_reading {
    struct sample sample;
    enum scrape_result result;
    double took_s;
    const char *page; /* NULL when none came; valid during the callback */
    size_t len;
};

typedef void (*scrape_fn)(void *ctx, const struct scrape_reading *r);

int scrape_new(sd_event *event, struct client *client, const struct scrape_setup *setup,
               scrape_fn cb, void *ctx, struct scrape **ret_scrape);
void scrape_free(struct scrape *s);
/* From now on it reads this page; while it is stopped. */
void scrape_point(struct scrape *s, const struct scrape_setup *setup);
/* From now on; forgets the sample before. */
void scrape_start(struct scrape *s);
void scrape_stop(struct scrape *s);
void scrape_interval(struct scrape *s, uint64_t poll_us);
const char *scrape_result_name(enum scrape_result r);
