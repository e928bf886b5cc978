/*
 * The driver for tests is as strict as the real one: each call that breaks a documented rule gives
 * the documented error, and would end any other test with the sentence that is looked for here.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cuda/driver.h"
#include "tests/unit/cuda/fake_card.h"

enum { SOME = 4096, PIECE = 2 << 20 };
#define CARD ((size_t)1 << 30)

/* What a call answers that breaks a rule, and what is said of it. */
#define BREAKS(call, code, words)                                                                  \
    do {                                                                                           \
        g_fake.forgive(true);                                                                      \
        assert_int_equal(call, code);                                                              \
        if (!strstr(g_fake.said(), words))                                                         \
            fail_msg("%s: said \"%s\"", #call, g_fake.said());                                     \
        g_fake.forgive(false);                                                                     \
    } while (0)

struct bench {
    struct cu_driver cu;
    cu_handle context, stream, event;
    cu_ptr memory; /* SOME bytes */
    char *pinned;  /* likewise */
};

static void open_bench(struct bench *x, int cards)
{
    struct ek_fault fault;

    *x = (struct bench){.memory = 0};
    g_fake.card(CARD, true);
    g_fake.cards(cards);
    assert_int_equal(cu_driver_open(&x->cu, &fault), 0);
    assert_int_equal(x->cu.ctx_retain(&x->context, 0), CU_OK);
    assert_int_equal(x->cu.ctx_set(x->context), CU_OK);
    assert_int_equal(x->cu.stream_new(&x->stream, CU_STREAM_NON_BLOCKING), CU_OK);
    assert_int_equal(x->cu.event_new(&x->event, CU_EVENT_DEFAULT), CU_OK);
    assert_int_equal(x->cu.alloc(&x->memory, SOME), CU_OK);
    assert_int_equal(x->cu.host_alloc((void **)&x->pinned, SOME, CU_HOST_PORTABLE), CU_OK);
}

static void close_bench(struct bench *x)
{
    assert_int_equal(x->cu.stream_wait(x->stream), CU_OK);
    assert_int_equal(x->cu.event_free(x->event), CU_OK);
    assert_int_equal(x->cu.stream_free(x->stream), CU_OK);
    assert_int_equal(x->cu.host_free(x->pinned), CU_OK);
    assert_int_equal(x->cu.free(x->memory), CU_OK);
    assert_int_equal(x->cu.ctx_release(0), CU_OK);
    assert_int_equal(g_fake.objects(), 0);
    assert_int_equal(g_fake.used(), 0);
}

static void test_contexts(void **state)
{
    (void)state;
    struct bench x;
    cu_ptr at;
    cu_handle other;

    open_bench(&x, 2);
    const struct cu_driver *cu = &x.cu;
    assert_int_equal(cu->ctx_retain(&other, 1), CU_OK);
    assert_int_equal(cu->ctx_set(other), CU_OK);
    BREAKS(cu->stream_wait(x.stream), 400, "no stream of the context");
    BREAKS(cu->event_record(x.event, x.stream), 400, "not both of the context");
    BREAKS(cu->fill(x.memory, 0, SOME, x.stream), 400, "no stream of the context");
    assert_int_equal(cu->ctx_release(1), CU_OK);
    BREAKS(cu->alloc(&at, SOME), 201, "this thread has no context"); /* it has ended */
    BREAKS(cu->ctx_set(other), 201, "that has ended");
    BREAKS(cu->ctx_release(1), 201, "more often than");
    BREAKS(cu->ctx_retain(&other, 2), CU_INVALID_DEVICE, "of no card");
    assert_int_equal(cu->ctx_set(NULL), CU_OK);
    BREAKS(cu->stream_new(&other, CU_STREAM_NON_BLOCKING), 201, "has no context");
    assert_int_equal(cu->ctx_set(x.context), CU_OK);
    close_bench(&x);
}

static void test_memory(void **state)
{
    (void)state;
    static char pageable[SOME];
    struct bench x;
    cu_ptr at;

    open_bench(&x, 1);
    const struct cu_driver *cu = &x.cu;
    char *pages = mmap(NULL, 2 * SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED && x.memory % 512 == 256); /* no better than is promised */
    BREAKS(cu->alloc(&at, 0), CU_INVALID_VALUE, "of nothing");
    BREAKS(cu->free(x.memory + 1), CU_INVALID_VALUE, "not allocated");
    BREAKS(cu->copy_in(x.memory + 1, pageable, SOME, x.stream), CU_INVALID_VALUE, "no such memory");
    BREAKS(cu->copy_out(pageable, x.memory - 8, 9, x.stream), CU_INVALID_VALUE, "no such memory");
    BREAKS(cu->fill(x.memory, 0, SOME + 1, x.stream), CU_INVALID_VALUE, "has not all");
    BREAKS(cu->copy(x.memory, x.memory + 8, 9, x.stream), CU_INVALID_VALUE, "over itself");
    BREAKS(cu->copy_in(x.memory, (void *)(uintptr_t)x.memory, 8, x.stream), CU_INVALID_VALUE,
           "host memory is the card's");

    assert_int_equal(cu->host_register(pages, SOME, CU_HOST_PORTABLE), CU_OK);
    BREAKS(cu->host_register(pages, SOME, CU_HOST_PORTABLE), 712, "pinned twice");
    BREAKS(cu->copy_in(x.memory, pages + 8, SOME, x.stream), CU_INVALID_VALUE, "pinned in part");
    BREAKS(cu->host_at(&at, pages, 0), CU_INVALID_VALUE, "not pinned for it");
    BREAKS(cu->host_unregister(pages + 8), CU_INVALID_VALUE, "not pinned");
    assert_int_equal(cu->copy_in(x.memory, pages, SOME, x.stream), CU_OK);
    BREAKS(cu->host_unregister(pages), CU_INVALID_VALUE, "while a copy of it waits");
    assert_int_equal(cu->copy_out(x.pinned, x.memory, SOME, x.stream), CU_OK);
    BREAKS(cu->host_free(x.pinned), CU_INVALID_VALUE, "while a copy of it waits");
    assert_int_equal(cu->stream_wait(x.stream), CU_OK);
    assert_int_equal(cu->host_unregister(pages), CU_OK);
    munmap(pages, 2 * SOME);
    BREAKS(cu->host_register(pages, SOME, 0), CU_INVALID_VALUE, "that the process has not");
    close_bench(&x);
}

static void test_mapped(void **state)
{
    (void)state;
    struct bench x;
    cu_ptr at;
    unsigned long long piece, second;

    open_bench(&x, 2);
    const struct cu_driver *cu = &x.cu;
    const struct cu_location here = {CU_LOCATION_DEVICE, 0};
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = here};
    const struct cu_access access = {here, CU_ACCESS_READWRITE},
                           other = {{CU_LOCATION_DEVICE, 1}, CU_ACCESS_READWRITE};
    BREAKS(cu->va_reserve(&at, SOME, 0, 0, 0), CU_INVALID_VALUE, "pieces of 2 MiB");
    BREAKS(cu->mem_create(&piece, SOME, &prop, 0), CU_INVALID_VALUE, "pieces of 2 MiB");
    assert_int_equal(cu->va_reserve(&at, 2 * PIECE, 0, 0, 0), CU_OK);
    assert_int_equal(cu->mem_create(&piece, PIECE, &prop, 0), CU_OK);
    assert_int_equal(cu->mem_create(&second, PIECE, &prop, 0), CU_OK);
    BREAKS(cu->mem_map(at + SOME, PIECE, 0, piece, 0), CU_INVALID_VALUE, "pieces of 2 MiB");
    BREAKS(cu->mem_map(at, 2 * PIECE, 0, piece, 0), CU_INVALID_VALUE, "of a handle");
    BREAKS(cu->mem_map(at + 2 * PIECE, PIECE, 0, piece, 0), CU_INVALID_VALUE, "not reserved");
    assert_int_equal(cu->mem_map(at, PIECE, 0, piece, 0), CU_OK);
    BREAKS(cu->mem_map(at, PIECE, 0, second, 0), CU_INVALID_VALUE, "mapped already");
    BREAKS(cu->fill(at, 0, SOME, x.stream), CU_INVALID_VALUE, "has not all"); /* no access yet */
    BREAKS(cu->mem_access(at + PIECE, PIECE, &access, 1), CU_INVALID_VALUE, "not mapped");
    BREAKS(cu->mem_access(at, PIECE, &other, 1), CU_INVALID_VALUE, "for another card");
    assert_int_equal(cu->mem_access(at, PIECE, &access, 1), CU_OK);
    assert_int_equal(cu->mem_map(at + PIECE, PIECE, 0, second, 0), CU_OK);
    assert_int_equal(cu->mem_access(at + PIECE, PIECE, &access, 1), CU_OK);
    assert_int_equal(cu->fill(at + SOME, 0, PIECE, x.stream), CU_OK); /* over both */
    BREAKS(cu->mem_unmap(at, PIECE), CU_INVALID_VALUE, "while work waits");
    assert_int_equal(cu->stream_wait(x.stream), CU_OK);
    BREAKS(cu->mem_unmap(at, SOME), CU_INVALID_VALUE, "not mapped as such");
    BREAKS(cu->va_free(at, 2 * PIECE), CU_INVALID_VALUE, "while some are mapped");
    assert_int_equal(cu->mem_release(piece), CU_OK);
    BREAKS(cu->mem_release(piece), CU_INVALID_VALUE, "not held");
    assert_int_equal(g_fake.used(), 2 * PIECE + SOME); /* mapped still */
    assert_int_equal(cu->mem_unmap(at, PIECE), CU_OK);
    assert_int_equal(g_fake.used(), PIECE + SOME);
    assert_int_equal(cu->mem_unmap(at + PIECE, PIECE), CU_OK);
    assert_int_equal(cu->mem_release(second), CU_OK);
    BREAKS(cu->va_free(at, PIECE), CU_INVALID_VALUE, "other addresses");
    assert_int_equal(cu->va_free(at, 2 * PIECE), CU_OK);
    close_bench(&x);
}

static void test_launches(void **state)
{
    (void)state;
    static char args[512];
    void *params[] = {args};
    struct bench x;
    cu_handle module, kernel, none = NULL;

    open_bench(&x, 1);
    const struct cu_driver *cu = &x.cu;
#define LAUNCH(gx, gy, threads, shared, on)                                                        \
    cu->launch(kernel, gx, gy, 1, threads, 1, 1, shared, on, params, NULL)
    BREAKS(cu->stream_new(&none, CU_EVENT_DEFAULT), CU_INVALID_VALUE, "the default one");
    BREAKS(cu->module_load(&module, NULL), CU_INVALID_VALUE, "of nothing");
    assert_int_equal(cu->module_load(&module, "image"), CU_OK);
    assert_int_equal(cu->module_function(&kernel, module, "ek_no_such"), CU_NOT_FOUND);
    assert_int_equal(cu->module_function(&kernel, module, "ek_embed"), CU_OK);
    BREAKS(LAUNCH(1, 1, 32, 0, none), 400, "the default one");
    BREAKS(LAUNCH(0, 1, 32, 0, x.stream), CU_INVALID_VALUE, "a grid of nothing");
    BREAKS(LAUNCH(1, 65536, 32, 0, x.stream), CU_INVALID_VALUE, "more than a card takes");
    BREAKS(LAUNCH(1, 1, 1025, 0, x.stream), CU_INVALID_VALUE, "more than 1024 threads");
    BREAKS(LAUNCH(1, 1, 32, (48 << 10) + 1, x.stream), CU_INVALID_VALUE, "was asked for");
    BREAKS(cu->function_set(kernel, CU_FUNC_MAX_DYNAMIC_SHARED, (99 << 10) + 1), CU_INVALID_VALUE,
           "more than every card has");
    assert_int_equal(cu->fill(x.memory, 0, SOME, x.stream), CU_OK);
    BREAKS(cu->module_unload(module), CU_INVALID_VALUE, "while work waits");
    assert_int_equal(cu->stream_wait(x.stream), CU_OK);
    assert_int_equal(cu->module_unload(module), CU_OK);
    BREAKS(LAUNCH(1, 1, 32, 0, x.stream), CU_INVALID_VALUE, "a module that is gone");
#undef LAUNCH
    close_bench(&x);
}

struct ending {
    const struct bench *x;
    cu_handle graph;
    int result;
};

static void *end_elsewhere(void *arg)
{
    struct ending *e = arg;

    assert_int_equal(e->x->cu.ctx_set(e->x->context), CU_OK);
    e->result = e->x->cu.capture_end(e->x->stream, &e->graph);
    return NULL;
}

/* Calls that spoil a capture: it gives nothing any more. */
static void test_spoilt(void **state)
{
    (void)state;
    static char pageable[SOME];
    struct bench x;
    cu_handle graph, made;
    cu_ptr at;

    open_bench(&x, 1);
    const struct cu_driver *cu = &x.cu;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(cu->event_record(x.event, x.stream), CU_OK);
        assert_int_equal(cu->capture_begin(x.stream, CU_CAPTURE_THREAD_LOCAL), CU_OK);
        switch (i) {
        case 0: BREAKS(cu->stream_wait(x.stream), CU_CAPTURE_UNSUPPORTED, "that captures"); break;
        case 1: BREAKS(cu->event_query(x.event), CU_CAPTURE_UNSUPPORTED, "that captures"); break;
        case 2: BREAKS(cu->alloc(&at, SOME), CU_CAPTURE_UNSUPPORTED, "that captures"); break;
        case 3: BREAKS(cu->free(x.memory), CU_CAPTURE_UNSUPPORTED, "that captures"); break;
        case 4: BREAKS(cu->module_load(&made, ""), CU_CAPTURE_UNSUPPORTED, "that captures"); break;
        case 5: BREAKS(cu->stream_await(x.stream, x.event, 0), 905, "waits for what is not"); break;
        }
        assert_int_equal(cu->fill(x.memory, 0, SOME, x.stream), CU_CAPTURE_INVALIDATED);
        assert_int_equal(cu->capture_end(x.stream, &graph), CU_CAPTURE_INVALIDATED);
        assert_null(graph);
    }
    BREAKS(cu->capture_begin(x.stream, 0), CU_INVALID_VALUE, "other threads spoil");
    BREAKS(cu->capture_end(x.stream, &graph), 401, "not begun there");
    assert_int_equal(cu->capture_begin(x.stream, CU_CAPTURE_THREAD_LOCAL), CU_OK);
    BREAKS(cu->copy_in(x.memory, pageable, SOME, x.stream), CU_INVALID_VALUE, "in a capture");
    struct ending e = {.x = &x};
    pthread_t thread;
    g_fake.forgive(true);
    assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, &e), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(e.result, CU_CAPTURE_LAST);
    assert_non_null(strstr(g_fake.said(), "by another thread"));
    g_fake.forgive(false);
    close_bench(&x);
}

/* What a graph is made of, and what has to be there when it is launched. */
static void test_graphs(void **state)
{
    (void)state;
    struct bench x;
    cu_handle side, graph, made;

    open_bench(&x, 1);
    const struct cu_driver *cu = &x.cu;
    assert_int_equal(cu->stream_new(&side, CU_STREAM_NON_BLOCKING), CU_OK);
    BREAKS(cu->stream_await(side, x.event, 0), CU_INVALID_VALUE, "is no wait");
    assert_int_equal(cu->capture_begin(x.stream, CU_CAPTURE_THREAD_LOCAL), CU_OK);
    assert_int_equal(cu->event_record(x.event, x.stream), CU_OK);
    assert_int_equal(cu->stream_await(side, x.event, 0), CU_OK);
    assert_int_equal(cu->copy_in(x.memory, x.pinned, SOME, side), CU_OK);
    BREAKS(cu->capture_end(x.stream, &graph), CU_CAPTURE_UNJOINED, "the end of the second");
    BREAKS(cu->event_query(x.event), 907, "of a graph");
    BREAKS(cu->stream_await(side, x.event, 0), 907, "whose capture is over");

    assert_int_equal(cu->capture_begin(x.stream, CU_CAPTURE_THREAD_LOCAL), CU_OK);
    assert_int_equal(cu->copy_in(x.memory, x.pinned, SOME, x.stream), CU_OK);
    assert_int_equal(cu->capture_end(x.stream, &graph), CU_OK);
    BREAKS(cu->graph_launch(graph, x.stream), CU_INVALID_VALUE, "not instantiated");
    assert_int_equal(cu->graph_make(&made, graph, 0), CU_OK);
    assert_int_equal(cu->graph_free(graph), CU_OK);
    BREAKS(cu->graph_free(made), CU_INVALID_VALUE, "of no graph");
    BREAKS(cu->graph_launch(made, NULL), 400, "in no stream");
    assert_int_equal(cu->graph_launch(made, x.stream), CU_OK);
    assert_int_equal(cu->stream_wait(x.stream), CU_OK);
    assert_int_equal(cu->host_free(x.pinned), CU_OK);
    BREAKS(cu->graph_launch(made, x.stream), CU_INVALID_VALUE, "no longer pinned");
    assert_int_equal(cu->host_alloc((void **)&x.pinned, SOME, CU_HOST_PORTABLE), CU_OK);
    assert_int_equal(cu->exec_free(made), CU_OK);
    BREAKS(cu->exec_free(made), CU_INVALID_VALUE, "not instantiated");
    assert_int_equal(cu->stream_free(side), CU_OK);
    close_bench(&x);
}

static void test_events(void **state)
{
    (void)state;
    struct bench x;
    cu_handle plain;
    float ms;

    open_bench(&x, 1);
    const struct cu_driver *cu = &x.cu;
    BREAKS(cu->event_new(&plain, 64), CU_INVALID_VALUE, "flags 40");
    assert_int_equal(cu->event_new(&plain, CU_EVENT_NO_TIMES), CU_OK);
    assert_int_equal(cu->event_record(plain, x.stream), CU_OK);
    BREAKS(cu->event_ms(&ms, x.event, plain), 400, "was not recorded");
    assert_int_equal(cu->event_record(x.event, x.stream), CU_OK);
    BREAKS(cu->event_ms(&ms, x.event, plain), 400, "without times");
    assert_int_equal(cu->event_ms(&ms, x.event, x.event), CU_NOT_READY);
    assert_int_equal(cu->event_free(plain), CU_OK);
    BREAKS(cu->event_free(plain), 400, "of no event");
    BREAKS(cu->event_record(plain, x.stream), 400, "not both of the context");
    close_bench(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_mapped),   cmocka_unit_test(test_launches),
        cmocka_unit_test(test_spoilt),   cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_events),
    };
    if (getenv("EVENKEEL_GPU"))
        return 0; /* a card has its own rules */
    return cmocka_run_group_tests_name("rules", tests, fake_setup, NULL);
}
