/*
 * What a node says of itself when the nodes meet: each thing that has to be the same on all is told
 * from another one, with what differs and what helps.
 */
#include "server/nodes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/mpi/cluster.h"
#include "server/model/model.h"
#include "server/stack.h"

struct world {
    struct stack s;
    struct ek_backend backend;
    struct ek_weight_file file;
};

static void on_cards(struct world *w)
{
    w->backend.name = "cuda";
}

static void older(struct world *w)
{
    (void)snprintf(w->s.info.isa, sizeof(w->s.info.isa), "avx2");
}

static void of_qwen(struct world *w)
{
    (void)snprintf(w->s.model->family, sizeof(w->s.model->family), "qwen3");
}

static void with_cache(struct world *w)
{
    w->s.model->graph.kv_f8 = true;
}

static void two_stages(struct world *w)
{
    w->s.open.stages = 2;
}

static void more_ranks(struct world *w)
{
    w->s.open.ranks = 6;
}

static void longer(struct world *w)
{
    w->s.model->graph.max_position++;
}

/* The same file, but for where its bytes are. */
static void other_bytes(struct world *w)
{
    w->file = w->s.model->files.file[0];
    w->file.data = (const char *)w->file.data + 64;
    w->file.size_bytes -= 64;
    w->s.model->files.file = &w->file;
}

static const struct {
    void (*change)(struct world *w);
    const char *says, *remedy;
} cases[] = {
    {on_cards,
     "computes on cuda, node 0 (a) computes on cpu: ", "give all nodes the same --device"},
    {older, "computes with avx2, node 0 (a) computes with avx512: ",
     "give all nodes the --cpu-isa that the oldest offers"},
    {of_qwen, "has a model qwen3, node 0 (a) has a model llama: ", "give all nodes the same model"},
    {with_cache, "KV cache fp8, node 0 (a) keeps it as bfloat16, KV cache plain: ",
     "give all nodes the same --dtype, --quantization and --kv-cache-dtype"},
    {two_stages, "has --pipeline-parallel-size 2, node 0 (a) has --pipeline-parallel-size 1: ",
     "give all nodes the same"},
    {more_ranks, "has ranks by --tensor-parallel-size 6, node 0 (a) has ranks by --tensor-parallel",
     "-size 4: give all nodes the same"},
    {longer, "has a model of shape ", "give all nodes the same model, with the same config.json"},
    {other_bytes, "has weights ", "give all nodes the same model files (sha256sum -c SHA256SUMS)"},
};

/* A node of that name, which is changed where `change` is not NULL. */
static void say(void (*change)(struct world *w), const char *host, struct ek_node_card *ret_card)
{
    struct world w = {.backend = {.name = "cpu"}};
    struct ek_fault fault;

    assert_int_equal(model_open("models/evenkeel-tiny", MODEL_DTYPE_AUTO, &w.s.model, &fault), 0);
    struct ek_weight_files files = w.s.model->files;
    w.s.backend = &w.backend;
    w.s.open.ranks = 4;
    (void)snprintf(w.s.info.isa, sizeof(w.s.info.isa), "avx512");
    if (change)
        change(&w);
    nodes_card(&w.s, ret_card);
    assert_true(ret_card->host[0]);
    (void)snprintf(ret_card->host, sizeof(ret_card->host), "%s", host);
    w.s.model->files = files;
    model_free(w.s.model);
}

static void test_cards(void **state)
{
    static struct ek_node_card first, mine;
    struct ek_fault f;
    (void)state;

    say(NULL, "a", &first);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        say(NULL, "b", &mine);
        mine.node = 1;
        assert_int_equal(ek_card_check(&mine, &first, &f), 0);
        say(cases[i].change, "b", &mine);
        mine.node = 1;
        assert_int_equal(ek_card_check(&mine, &first, &f), -EBADMSG);
        if (strncmp(f.msg, "Node 1 (b) ", 11) != 0 || !strstr(f.msg, cases[i].says) ||
            !strstr(f.msg, cases[i].remedy))
            fail_msg("%s ... %s: not in: %s", cases[i].says, cases[i].remedy, f.msg);
    }
}

/* Of another version it is the first thing that is said. */
static void test_version(void **state)
{
    static struct ek_node_card first, mine;
    struct ek_fault f;
    (void)state;

    say(NULL, "a", &first);
    say(older, "b", &mine);
    (void)snprintf(mine.line[0].says, sizeof(mine.line[0].says), "is evenkeel-server 9");
    assert_int_equal(ek_card_check(&mine, &first, &f), -EBADMSG);
    assert_non_null(
        strstr(f.msg, "is evenkeel-server 9, node 0 (a) is evenkeel-server " EK_VERSION));
    assert_non_null(strstr(f.msg, ": install the same on all nodes"));
}

/* Each gets what the smallest has, which is named where node 0 has more. */
static void test_least(void **state)
{
    static struct ek_node_card cards[3] = {
        {.node = 0, .host = "a", .memory_bytes = 8ull << 30, .free_bytes = 6ull << 30},
        {.node = 1, .host = "b", .memory_bytes = 9ull << 30, .free_bytes = 5ull << 30},
        {.node = 2, .host = "c", .memory_bytes = 4ull << 30, .free_bytes = 7ull << 30},
    };
    struct ek_device_info two = {.memory_bytes = 8ull << 30, .free_bytes = 6ull << 30}, all = two;
    (void)state;

    nodes_info(cards, 2, &two);
    assert_true(two.memory_bytes == 8ull << 30 && two.free_bytes == 5ull << 30 && !two.note[0]);
    (void)snprintf(all.note, sizeof(all.note), "A word.");
    nodes_info(cards, 3, &all);
    assert_true(all.memory_bytes == 4ull << 30 && all.free_bytes == 5ull << 30);
    assert_string_equal(all.note, "A word. The nodes differ: node 2 (c) has 4.0 GiB, node 0 8.0 "
                                  "GiB. Each rank gets what the smallest can hold.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
