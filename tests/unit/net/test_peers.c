/* Connections by peer: a model of plain arrays says what is right. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/net/peers.h"
#include "tests/unit/alloc.h"

#define FDS   64
#define HOSTS 24
#define EACH  3

static struct sockaddr_storage v4(uint32_t address)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(&a, &in, sizeof(in));
    return a;
}

static struct sockaddr_storage v6(const uint8_t *bytes)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in6 in = {.sin6_family = AF_INET6};
    memcpy(&in.sin6_addr, bytes, 16);
    memcpy(&a, &in, sizeof(in));
    return a;
}

static void test_random(void **state)
{
    int owner[FDS], count[HOSTS] = {0};
    uint64_t seed = 12345;
    struct peers *p = NULL;
    (void)state;
    memset(owner, 0xff, sizeof(owner));
    assert_int_equal(peers_new(FDS, EACH, &p), 0);
    for (int i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        int fd = (int)(seed >> 33) % FDS, host = (int)(seed >> 45) % HOSTS;
        if (owner[fd] >= 0) {
            peers_give(p, fd);
            count[owner[fd]]--;
            owner[fd] = -1;
            continue;
        }
        struct sockaddr_storage a = v4(0x0a000000u + (uint32_t)host);
        bool room = count[host] < EACH;
        assert_int_equal(peers_take(p, fd, &a), room);
        if (room) {
            owner[fd] = host;
            count[host]++;
        }
    }
    peers_free(p);
}

static void test_addresses(void **state)
{
    static const uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
    static const uint8_t one[16] = {0x20, 1, [7] = 1, [15] = 1},
                         same[16] = {0x20, 1, [7] = 1, [8] = 9};
    static const uint8_t other[16] = {0x20, 1, [7] = 2, [15] = 1};
    struct sockaddr_storage a = v4(0x0a000001u), b = v6(mapped), c = v6(one), d = v6(same),
                            e = v6(other);
    struct sockaddr_storage local = {.ss_family = AF_UNIX};
    struct peers *p = NULL;
    (void)state;
    assert_int_equal(peers_new(16, 1, &p), 0);
    assert_true(peers_take(p, 0, &a));
    assert_false(peers_take(p, 1, &b)); /* the same host */
    assert_true(peers_take(p, 2, &c));
    assert_false(peers_take(p, 3, &d)); /* the same network */
    assert_true(peers_take(p, 4, &e));
    peers_give(p, 0);
    peers_give(p, 0); /* twice is fine */
    assert_true(peers_take(p, 1, &b));
    assert_true(peers_take(p, 5, &local) && peers_take(p, 6, &local)); /* not counted */
    assert_true(peers_take(p, 99, &a) && peers_take(p, -1, &a));       /* out of range: let in */
    peers_give(p, 99);
    peers_give(p, -1);
    peers_give(NULL, 3);
    assert_true(peers_take(NULL, 3, &a));
    peers_free(p);
    peers_free(NULL);
}

static void test_allocations(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct peers *p = NULL;
        alloc_fail_at(n);
        int r = peers_new(16, 1, &p);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            peers_free(p);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
