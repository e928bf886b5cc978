/* Stored responses: what is found, by whom and for how long; what goes when room is short. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/api/past.h"
#include "tests/unit/alloc.h"

#define ANNA 7u
#define BERT 8u

/* Stores {"output":[OUT]} asked with IN, after the response `before` of the same owner or NULL. */
static int keep(struct past_store *s, uint64_t owner, const char *id, const char *in,
                const char *out, const char *before, uint64_t now_us)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "{\"output\":[%s]}", out);
    struct past *p = before ? past_find(s, owner, before, now_us) : NULL;
    const struct past_text t = {.id = id,
                                .response = text,
                                .response_len = (size_t)n,
                                .output_at = 11,
                                .output_len = strlen(out),
                                .input = in,
                                .input_len = strlen(in)};
    int r = past_keep(s, owner, &t, p, now_us);
    past_drop(s, p);
    return r;
}

static bool has(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us)
{
    struct past *p = past_find(s, owner, id, now_us);
    past_drop(s, p);
    return p != NULL;
}

/* What a walk has seen, and after how many items it ends. */
struct past_seen {
    char text[256];
    int left;
};

static bool see(void *ctx, const struct past_item *item)
{
    struct past_seen *s = ctx;
    size_t len = strlen(s->text);
    (void)snprintf(s->text + len, sizeof(s->text) - len, "%s%.*s%s%.*s", len ? "," : "",
                   (int)item->len, item->text, item->id_len ? "=" : "", (int)item->id_len,
                   item->id);
    return --s->left > 0;
}

static void expect_walk(struct past_store *s, const char *id, bool inputs, bool newest_first,
                        int most, const char *want)
{
    struct past_seen seen = {.left = most};
    struct past *p = past_find(s, ANNA, id, 0);
    assert_non_null(p);
    assert_int_equal(past_walk(p, inputs, newest_first, see, &seen), 0);
    assert_string_equal(seen.text, want);
    past_drop(s, p);
}

static void expect_items(struct past_store *s, const char *id, bool inputs, const char *want)
{
    struct past *p = past_find(s, ANNA, id, 0);
    size_t items = want[0] != '\0';
    assert_non_null(p);
    for (const char *c = want; *c; c++)
        items += *c == ',';
    assert_int_equal(past_count(p, inputs), items);
    assert_true(past_items_bytes(p) + 1 >= strlen(want) - (items ? items - 1 : 0));
    past_drop(s, p);
    expect_walk(s, id, inputs, false, INT_MAX, want);
}

static struct past_stat stat_of(struct past_store *s)
{
    struct past_stat stat;
    past_stat(s, &stat);
    return stat;
}

static void test_conversation(void **state)
{
    struct past_store *s = NULL;
    size_t len;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    assert_int_equal(keep(s, ANNA, "a", "1,2", "3", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "b", "4", "", "a", 0), 0); /* an answer without items */
    assert_int_equal(keep(s, ANNA, "c", "", "5,6", "b", 0), 0);
    expect_items(s, "a", false, "1,2,3");
    expect_items(s, "a", true, "1,2");
    expect_items(s, "b", false, "1,2,3,4");
    expect_items(s, "c", false, "1,2,3,4,5,6");
    expect_items(s, "c", true, "1,2,3,4");
    struct past *p = past_find(s, ANNA, "c", 0);
    assert_string_equal(past_response(p, &len), "{\"output\":[5,6]}");
    assert_int_equal(len, 16);
    past_drop(s, p);
    assert_int_equal(keep(s, ANNA, "a", "9", "9", NULL, 0), 0); /* the same id: the later one */
    expect_items(s, "a", false, "9,9");
    expect_items(s, "c", true, "1,2,3,4");
    assert_int_equal(stat_of(s).pasts, 4);
    past_store_free(s);
}

/* A walk ends where it is told to, either way round, and items are taken as they stand. */
static void test_walk(void **state)
{
    static const char first[] = "{\"a\":[1,{\"id\":\"no\"}],\"id\":\"x,]\\\"}\"}";
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    assert_int_equal(keep(s, ANNA, "a", first, "{\"id\":5,\"k\":\"id\"}", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "b", "[\"id\",\"y\"]", "{\"id\":\"z\"}", "a", 0), 0);
    assert_int_equal(keep(s, ANNA, "c", "\"id\"", "", "b", 0), 0);
    expect_walk(s, "a", true, false, 9,
                "{\"a\":[1,{\"id\":\"no\"}],\"id\":\"x,]\\\"}\"}=\"x,]\\\"}\"");
    expect_walk(s, "c", true, false, 9,
                "{\"a\":[1,{\"id\":\"no\"}],\"id\":\"x,]\\\"}\"}=\"x,]\\\"}\","
                "{\"id\":5,\"k\":\"id\"},[\"id\",\"y\"],{\"id\":\"z\"}=\"z\",\"id\"");
    expect_walk(s, "c", false, true, 3, "\"id\",{\"id\":\"z\"}=\"z\",[\"id\",\"y\"]");
    expect_walk(s, "b", true, true, 2, "[\"id\",\"y\"],{\"id\":5,\"k\":\"id\"}");
    expect_walk(s, "b", false, false, 1,
                "{\"a\":[1,{\"id\":\"no\"}],\"id\":\"x,]\\\"}\"}=\"x,]\\\"}\"");
    past_store_free(s);
}

static void test_owners_and_deletion(void **state)
{
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    assert_int_equal(keep(s, ANNA, "a", "1", "2", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "b", "3", "4", "a", 0), 0);
    assert_false(has(s, BERT, "a", 0));
    assert_false(has(s, 0, "a", 0));
    assert_false(past_delete(s, BERT, "a", 0));
    assert_true(past_delete(s, ANNA, "a", 0));
    assert_false(past_delete(s, ANNA, "a", 0));
    assert_false(has(s, ANNA, "a", 0));
    expect_items(s, "b", false, "1,2,3,4"); /* what went on from it still has it */
    assert_int_equal(stat_of(s).pasts, 2);
    assert_true(past_delete(s, ANNA, "b", 0));
    assert_int_equal(stat_of(s).pasts, 0);
    assert_int_equal(stat_of(s).bytes, 0);
    past_store_free(s);
}

static void test_age(void **state)
{
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    assert_int_equal(keep(s, ANNA, "a", "1", "2", NULL, 1000), 0);
    assert_int_equal(keep(s, ANNA, "b", "1", "2", NULL, 1050), 0);
    assert_true(has(s, ANNA, "a", 1099));
    struct past *held = past_find(s, ANNA, "a", 1099);
    assert_false(has(s, ANNA, "a", 1100));
    assert_true(has(s, ANNA, "b", 1100));
    assert_int_equal(stat_of(s).pasts, 2); /* who reads it still has it */
    past_drop(s, held);
    assert_int_equal(stat_of(s).pasts, 1);
    assert_int_equal(stat_of(s).evicted, 0);
    past_store_free(s);
}

/* Room for four of these: a key has two of them, requests without a key all. */
static void test_room(void **state)
{
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    assert_int_equal(keep(s, ANNA, "a", "1", "2", NULL, 0), 0);
    uint64_t one = stat_of(s).bytes;
    past_store_free(s);
    assert_int_equal(past_store_new(4 * one, 100, &s), 0);
    assert_int_equal(keep(s, BERT, "b", "1", "2", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "a", "1", "2", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "c", "1", "2", NULL, 0), 0);
    assert_int_equal(keep(s, ANNA, "d", "1", "2", NULL, 0), 0);
    assert_false(has(s, ANNA, "a", 0)); /* the key's own oldest, not the oldest of all */
    assert_true(has(s, BERT, "b", 0) && has(s, ANNA, "c", 0) && has(s, ANNA, "d", 0));
    assert_int_equal(keep(s, 0, "e", "1", "2", NULL, 0), 0);
    assert_int_equal(keep(s, 0, "f", "1", "2", NULL, 0), 0);
    assert_false(has(s, BERT, "b", 0)); /* now the oldest of all */
    assert_int_equal(stat_of(s).pasts, 4);
    assert_int_equal(stat_of(s).evicted, 2);
    /* a conversation of a key that is longer than its share pushes nothing out */
    assert_int_equal(keep(s, ANNA, "g", "1", "2", "d", 0), 0);
    assert_int_equal(keep(s, ANNA, "h", "1", "2", "g", 0), -E2BIG);
    assert_true(has(s, ANNA, "g", 0) && !has(s, ANNA, "c", 0));
    assert_int_equal(stat_of(s).bytes, 4 * one);
    past_store_free(s);
}

/* As many owners as there are places, and one more. */
static void test_many_owners(void **state)
{
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 100, &s), 0);
    for (uint64_t i = 1; i <= PAST_OWNERS + 1; i++)
        assert_int_equal(keep(s, i, "a", "1", "2", NULL, 0), 0);
    assert_false(has(s, 1, "a", 0));
    for (uint64_t i = 2; i <= PAST_OWNERS + 1; i++)
        assert_true(has(s, i, "a", 0));
    past_store_free(s);
}

#define ROWS 12u /* pasts that a key may have here */

/* Three keys keep and delete in turns that look random; of each the newest are there, in its own
 * order, whatever others keep between them. */
static void test_rows(void **state)
{
    struct past_store *s = NULL;
    uint32_t kept[3][ROWS + 1], counts[3] = {0}, chance = 1;
    char id[16];
    (void)state;
    assert_int_equal(past_store_new(1 << 20, 1, &s), 0);
    assert_int_equal(keep(s, 1, "r00000", "1", "2", NULL, 0), 0);
    const uint64_t one = stat_of(s).bytes;
    past_store_free(s);
    assert_int_equal(past_store_new(PAST_SHARE * ROWS * one, 100, &s), 0);
    for (uint32_t i = 0; i < 4000; i++) {
        chance = chance * 1664525u + 1013904223u;
        const uint32_t who = (chance >> 24) % 3, drop = chance >> 28;
        uint32_t *n = &counts[who];
        if (drop < 3 && *n > 0) {
            const uint32_t at = drop % *n;
            (void)snprintf(id, sizeof(id), "r%05u", kept[who][at]);
            assert_true(past_delete(s, who + 1, id, 0));
            memmove(kept[who] + at, kept[who] + at + 1, (*n - at) * sizeof(kept[0][0]));
            --*n;
            continue;
        }
        if (counts[0] + counts[1] + counts[2] == PAST_SHARE * ROWS && *n < ROWS)
            continue; /* another key's would go */
        (void)snprintf(id, sizeof(id), "r%05u", i);
        assert_int_equal(keep(s, who + 1, id, "1", "2", NULL, 0), 0);
        kept[who][(*n)++] = i;
        if (*n > ROWS) {
            (void)snprintf(id, sizeof(id), "r%05u", kept[who][0]);
            assert_false(has(s, who + 1, id, 0));
            memmove(kept[who], kept[who] + 1, ROWS * sizeof(kept[0][0]));
            *n = ROWS;
        }
        for (uint32_t k = 0; k < *n; k++) {
            (void)snprintf(id, sizeof(id), "r%05u", kept[who][k]);
            assert_true(has(s, who + 1, id, 0));
        }
        assert_int_equal(stat_of(s).pasts, counts[0] + counts[1] + counts[2]);
    }
    assert_true(stat_of(s).evicted > 100);
    past_store_free(s);
}

/* What cannot fit however short its answer is, is known before there is one. */
static void test_fits(void **state)
{
    struct past_store *s = NULL;
    (void)state;
    assert_int_equal(past_store_new(8192, 100, &s), 0);
    assert_true(past_fits(s, 0, NULL, 4096));
    assert_false(past_fits(s, ANNA, NULL, 4096)); /* half of it is a key's share */
    assert_false(past_fits(s, 0, NULL, 8192));
    assert_int_equal(keep(s, 0, "a", "1", "2", NULL, 0), 0);
    struct past *a = past_find(s, 0, "a", 0);
    const size_t room = 8192 - 2 * (stat_of(s).bytes + 64);
    assert_true(past_fits(s, 0, a, room));
    assert_false(past_fits(s, 0, a, 8192 - stat_of(s).bytes));
    past_drop(s, a);
    past_store_free(s);
}

/* The number is bounded too, and a long conversation is freed without a deep stack. */
static void test_many(void **state)
{
    struct past_store *s = NULL;
    char id[16], before[16];
    (void)state;
    assert_int_equal(past_store_new(1u << 30, 100, &s), 0);
    for (uint32_t i = 0; i < PAST_MOST; i++) {
        (void)snprintf(id, sizeof(id), "r%u", i);
        assert_int_equal(keep(s, 0, id, "1", "2", i ? before : NULL, 0), 0);
        memcpy(before, id, sizeof(id));
    }
    assert_int_equal(stat_of(s).pasts, PAST_MOST);
    assert_int_equal(keep(s, 0, "last", "1", "2", before, 0), -E2BIG); /* all is one conversation */
    assert_int_equal(stat_of(s).pasts, PAST_MOST); /* it would not fit whatever goes */
    assert_int_equal(keep(s, 0, "new", "1", "2", NULL, 0), 0);
    assert_int_equal(stat_of(s).pasts, 1);
    past_store_free(s);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct past_store *s = NULL;
        struct past_seen seen = {.left = 9};
        struct past *p = NULL;
        alloc_fail_at(n);
        int r = past_store_new(1 << 20, 100, &s);
        if (r == 0)
            r = keep(s, ANNA, "a", "1", "2", NULL, 0);
        if (r == 0)
            p = past_find(s, ANNA, "a", 0);
        if (p)
            r = past_walk(p, false, false, see, &seen);
        bool failed = alloc_failed();
        past_drop(s, p);
        past_store_free(s);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_owners_and_deletion),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_many_owners),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
