/* Flags and file into struct options, and the checks that concern more than one row of the table.
 */
#include "server/options.h"

#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "kernels/registry.h"
#include "server/kvevents.h"
#include "server/net/tracer.h"
#include "server/nodes.h"

/* No more ranks than there can be, and as many cards where they are named. */
static int check_ranks(const struct options *o, struct ek_fault *f)
{
    const uint64_t shares = o->tensor_parallel_size, stages = o->pipeline_parallel_size;
    struct ek_chosen c;
    const uint64_t here = shares * stages / o->nnodes;

    if (shares * stages > EK_MOST_RANKS)
        return ek_fault_set(f, "pipeline-parallel-size",
                            "--pipeline-parallel-size %llu with --tensor-parallel-size %llu are "
                            "%llu ranks, and %u is the most: lower one of them",
                            (unsigned long long)stages, (unsigned long long)shares,
                            (unsigned long long)(shares * stages), EK_MOST_RANKS);
    int r = ek_backend_choose(o->device, &c, f);
    if (r < 0 || c.cards == 0 || c.cards == here)
        return r;
    if (stages > 1)
        return ek_fault_set(f, "device",
                            "--device %.60s names %u card%s, and %llu stages of %llu rank%s need "
                            "%llu%s: make --pipeline-parallel-size times --tensor-parallel-size "
                            "equal to the number of cards%s",
                            o->device, c.cards, c.cards == 1 ? "" : "s", (unsigned long long)stages,
                            (unsigned long long)shares, shares == 1 ? "" : "s",
                            (unsigned long long)here, o->nnodes > 1 ? " on each node" : "",
                            o->nnodes > 1 ? " of all nodes" : "");
    return ek_fault_set(f, "device",
                        "--device %.60s names %u card%s, and --tensor-parallel-size %llu needs one "
                        "for each rank%s: make them equal",
                        o->device, c.cards, c.cards == 1 ? "" : "s", (unsigned long long)shares,
                        o->nnodes > 1 ? " of this node" : "");
}

/* As many ranks on each node, and stages within nodes or over whole ones. */
static int check_layout(const struct options *o, struct ek_fault *f)
{
    const unsigned long long shares = o->tensor_parallel_size, nodes = o->nnodes;
    const unsigned long long stages = o->pipeline_parallel_size, here = shares * stages / nodes;

    if (stages == 1 && shares % nodes != 0)
        return ek_fault_set(f, "nnodes",
                            "--nnodes %llu: --tensor-parallel-size %llu counts the ranks of all "
                            "nodes and must be a multiple of it, for example %llu",
                            nodes, shares, nodes * (shares / nodes + 1));
    if (shares * stages % nodes != 0)
        return ek_fault_set(f, "nnodes",
                            "--nnodes %llu: --pipeline-parallel-size %llu times "
                            "--tensor-parallel-size %llu are the %llu ranks of all nodes and must "
                            "be a multiple of it, for example with --pipeline-parallel-size %llu",
                            nodes, stages, shares, shares * stages, nodes * (stages / nodes + 1));
    if (stages > 1 && here % shares != 0 && shares % here != 0)
        return ek_fault_set(f, "nnodes",
                            "--nnodes %llu: each node has %llu of the ranks, and a stage of "
                            "--tensor-parallel-size %llu would have parts of nodes: let one of the "
                            "two divide the other, for example with --pipeline-parallel-size %llu",
                            nodes, here, shares, nodes);
    return 0;
}

/* Flags of the protocol between machines that 0.1.0 had. A server that is alone never used them, so
 * its files go on working there, with a warning. */
static int check_gone(const struct options *o, bool alone, ek_opt_warn_fn warn, void *ctx,
                      struct ek_fault *f)
{
    static const char *const gone[] = {"node-rank", "master-addr", "master-port",
                                       "master-key-file"};
    const char *rank = o->gone[0];

    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++) {
        char msg[120];

        if (!o->gone[i])
            continue;
        if (!alone || (rank && strcmp(rank, "0") != 0))
            return ek_fault_set(f, gone[i],
                                "--%s is gone: mpirun or srun starts the processes of all "
                                "machines, for example mpirun -n 2 --host a,b evenkeel-server "
                                "--tensor-parallel-size 2 ...; leave it out, and see "
                                "docs/nodes.md",
                                gone[i]);
        (void)snprintf(msg, sizeof(msg), "--%s is accepted and ignored: there is one machine.",
                       gone[i]);
        if (warn)
            warn(ctx, msg);
    }
    return 0;
}

/* With --engine-command the server is no node, and what the command starts are those of its engine.
 */
static int place_engine(struct options *o, bool started, struct ek_fault *f)
{
    if (!o->engine_command && o->engine_process && (started || o->nnodes > 1))
        return ek_fault_set(f, "engine-process",
                            "--engine-process over several machines: MPI ends all processes of a "
                            "group with the first, so the server must not be one of them: start "
                            "it by itself, with --nnodes and --engine-command \"mpirun -n 2 --host "
                            "a,b ...\"; see docs/nodes.md");
    if (o->keep_weights_host && !o->engine_process)
        return ek_fault_set(f, "keep-weights-host",
                            "--keep-weights-host keeps them for the next engine of "
                            "--engine-process: give both, or none");
    if (!o->engine_command)
        return 0;
    if (!o->engine_process)
        return ek_fault_set(f, "engine-command",
                            "--engine-command starts the nodes of --engine-process: give both, or "
                            "let mpirun start the server");
    if (o->engine_command[strspn(o->engine_command, " \t\n")] == '\0')
        return ek_fault_set(f, "engine-command",
                            "--engine-command is empty: for example --engine-command \"mpirun -n "
                            "2 --host a,b --map-by node --bind-to none\"");
    if (started) {
        o->engine_node = true;
        o->engine_process = false;
    } else if (o->nnodes <= 1) {
        return ek_fault_set(f, "nnodes",
                            "--engine-command: say with --nnodes how many processes it starts, "
                            "one on each machine");
    }
    return 0;
}

/* Which of the nodes this is, by what started it. */
static int place_node(struct options *o, ek_opt_warn_fn warn, void *ctx, struct ek_fault *f)
{
    uint32_t node = 0, nodes = 1;
    const bool started = nodes_started(&node, &nodes);
    int r = check_gone(o, !started && o->nnodes <= 1, warn, ctx, f);

    if (r)
        return r;
    if (started && o->nnodes > 0 && o->nnodes != nodes)
        return ek_fault_set(f, "nnodes",
                            "--nnodes %llu, but %u processes were started: start one on each "
                            "machine (mpirun -n %llu --map-by node, srun --ntasks-per-node=1), or "
                            "leave it out",
                            (unsigned long long)o->nnodes, nodes, (unsigned long long)o->nnodes);
    r = place_engine(o, started, f);
    if (r)
        return r;
    if (!started && o->nnodes > 1 && !o->dry_run && !o->engine_command)
        return ek_fault_set(f, "nnodes",
                            "--nnodes %llu: start one process on each machine with mpirun -n %llu "
                            "--host a,b evenkeel-server ..., or srun --mpi=pmix; see docs/nodes.md",
                            (unsigned long long)o->nnodes, (unsigned long long)o->nnodes);
    o->node_rank = node;
    if (started || o->nnodes == 0)
        o->nnodes = nodes;
    return check_layout(o, f);
}

static int options_check(const struct options *o, ek_opt_warn_fn warn, void *ctx,
                         struct ek_fault *f)
{
    if (o->data_parallel_size > 1)
        return ek_fault_set(f, "data-parallel-size",
                            "--data-parallel-size %llu: a server is one replica; let evenkeeld run "
                            "several servers",
                            (unsigned long long)o->data_parallel_size);
    if (o->dry_run_memory > 0 && !o->dry_run)
        return ek_fault_set(f, "dry-run-memory",
                            "--dry-run-memory %g is for --dry-run: add that, or leave it out; "
                            "--gpu-memory-utilization makes a server take less",
                            o->dry_run_memory);
    if (o->kv_offloading_size > 0 && !o->enable_prefix_caching)
        return ek_fault_set(f, "kv-offloading-size",
                            "--kv-offloading-size %g is for blocks of the prefix cache, which "
                            "--no-enable-prefix-caching switches off: leave one out",
                            o->kv_offloading_size);
    if (o->admission_high > 0 && o->admission_low > o->admission_high)
        return ek_fault_set(f, "admission-low",
                            "--admission-low %g is above --admission-high %g: lower it, or leave "
                            "--admission-high out",
                            o->admission_low, o->admission_high);
    if (o->block_size & (o->block_size - 1) || o->block_size < 8 || o->block_size > 128)
        return ek_fault_set(f, "block-size", "--block-size %llu: choose 8, 16, 32, 64 or 128",
                            (unsigned long long)o->block_size);
    if (o->max_num_seqs && o->max_num_batched_tokens && o->max_num_batched_tokens < o->max_num_seqs)
        return ek_fault_set(f, "max-num-batched-tokens",
                            "--max-num-batched-tokens %llu is less than --max-num-seqs %llu: each "
                            "running sequence needs one token of the budget; raise it or lower "
                            "--max-num-seqs",
                            (unsigned long long)o->max_num_batched_tokens,
                            (unsigned long long)o->max_num_seqs);
    if (o->enable_auto_tool_choice && strcmp(o->tool_call_parser, "none") == 0)
        return ek_fault_set(f, "enable-auto-tool-choice",
                            "--enable-auto-tool-choice needs a --tool-call-parser that is not "
                            "none, for example auto or hermes");
    const char *v = o->show_hidden_metrics_for_version;
    if (v && (v[0] < '0' || v[0] > '9' || !strchr(v, '.') || v[strspn(v, "0123456789.")]))
        return ek_fault_set(f, "show-hidden-metrics-for-version",
                            "--show-hidden-metrics-for-version %.40s: write a version of vLLM, "
                            "like 0.7",
                            v);
    struct kvevents_config events;
    int r = check_ranks(o, f);
    if (r == 0 && o->otlp_traces_endpoint)
        r = tracer_check(o->otlp_traces_endpoint, f);
    if (r == 0)
        r = kvevents_config_parse(o->kv_events_config, &events, f);
    if (r < 0)
        return r;
    if (events.on && !o->enable_prefix_caching)
        return ek_fault_set(f, "kv-events-config",
                            "--kv-events-config tells of the prefix cache, which "
                            "--no-enable-prefix-caching switches off: leave one out");
    if (o->listen_from_control && !o->control_socket)
        return ek_fault_set(f, "listen-from-control",
                            "--listen-from-control needs --control-socket PATH");
    if (o->listen_from_control && o->uds)
        return ek_fault_set(f, "uds", "--uds and --listen-from-control exclude each other");
    if (!o->enable_chunked_prefill && warn)
        warn(ctx, "--no-enable-chunked-prefill is accepted and ignored: prompts are always "
                  "computed in chunks under --max-num-batched-tokens.");
    return 0;
}

int options_read(struct options *o, int argc, char **argv, ek_opt_warn_fn warn, void *ctx,
                 struct ek_fault *fault)
{
    struct ek_opt_source src = {.table = option_table, .into = o, .warn = warn, .warn_ctx = ctx};
    char *model = NULL;
    int r = ek_opt_parse(&src, argc, argv, &model, fault);
    if (r == 0 && model) {
        r = ek_opt_set(&src, "model", model, fault);
    }
    if (r == 0)
        r = place_node(o, warn, ctx, fault);
    if (r == 0)
        r = options_check(o, warn, ctx, fault);
    return r;
}

bool options_kv_i8(const struct options *o)
{
    return strcmp(o->kv_cache_dtype, "int8_per_token_head") == 0;
}

bool options_kv_f8(const struct options *o)
{
    return strcmp(o->kv_cache_dtype, "fp8") == 0 || strcmp(o->kv_cache_dtype, "fp8_e4m3") == 0;
}

bool options_is_node(const struct options *o)
{
    return o->nnodes > 1 && !o->engine_process;
}

bool options_follows(const struct options *o)
{
    return o->node_rank > 0 || o->engine_node;
}

void options_done(struct options *o)
{
    ek_opt_free(option_table, o);
}
