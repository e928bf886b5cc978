/* `evenkeelctl plan`: asks the planner what fits, how fast it would be, and what to set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/plan.h"
#include "supervisor/ctl/plan_machine.h"
#include "supervisor/ctl/plan_server.h"
#include "supervisor/ctl/verb.h"
#include "supervisor/planner/advise.h"
#include "supervisor/planner/trace.h"

#define GIB        1073741824.0
#define TRACE_MOST (256u << 20)
#define PROMPT     1024.0 /* when nothing is said of the load */
#define OUTPUT     256.0

struct plan_options {
    char *gpu, *trace, *html, *weights, *kv, *machine;
    double memory_gib, share, rate, prompt, output, ttft, itl, price, bandwidth, tflops;
    uint64_t gpus, max_model_len, seqs, tokens, parallel, stages, nodes;
    bool json, explain, list, page, measure, estimate;
};

#define AT(field) offsetof(struct plan_options, field)
static const struct ek_opt table[] = {
    {.name = "gpu",
     .type = OPT_STRING,
     .at = AT(gpu),
     .help = "The card: h100, h200, a100-40, a100-80, l4, l40s, rtx4090, b200, ...; --list-gpus "
             "lists them. Without it the CPU of this machine."},
    {.name = "device-memory",
     .type = OPT_FRACTION,
     .at = AT(memory_gib),
     .min = 0.01,
     .max = 100000,
     .help = "Memory of one card in GiB, for a card that is not in the table, or less of one."},
    {.name = "gpus",
     .type = OPT_UINT,
     .at = AT(gpus),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Cards in the machine."},
    {.name = "nnodes",
     .type = OPT_UINT,
     .at = AT(nodes),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Machines like it that share one model."},
    {.name = "gpu-memory-utilization",
     .alias = "share",
     .type = OPT_FRACTION,
     .at = AT(share),
     .min = 0.05,
     .max = 1,
     .def = "0.92",
     .help = "Share of a card's memory that may be taken."},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .type = OPT_UINT,
     .at = AT(parallel),
     .min = 1,
     .max = 64,
     .help = "Cards of one server, or of one stage of it; without it the fewest that hold it."},
    {.name = "pipeline-parallel-size",
     .alias = "pp",
     .type = OPT_UINT,
     .at = AT(stages),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Stages that share the layers, each of --tensor-parallel-size cards."},
    {.name = "max-model-len",
     .type = OPT_UINT,
     .at = AT(max_model_len),
     .min = 1,
     .max = 100000000,
     .help = "Longest request that must fit."},
    {.name = "max-num-seqs",
     .type = OPT_UINT,
     .at = AT(seqs),
     .min = 1,
     .max = 65536,
     .help = "Sequences at once, instead of the best."},
    {.name = "max-num-batched-tokens",
     .type = OPT_UINT,
     .at = AT(tokens),
     .min = 1,
     .max = 1048576,
     .help = "Tokens of one step, instead of the starting value for the card."},
    {.name = "weight-bits",
     .type = OPT_CHOICE,
     .at = AT(weights),
     .def = "auto",
     .choices = "auto|16|8|4",
     .help = "Plan for a copy with weights of so many bits."},
    {.name = "kv-cache-dtype",
     .type = OPT_CHOICE,
     .at = AT(kv),
     .def = "any",
     .choices = "any|auto|fp8",
     .help = "auto: 16 bit only; fp8: 8 bit only (on the CPU int8_per_token_head)."},
    {.name = "rate",
     .type = OPT_FRACTION,
     .at = AT(rate),
     .min = 0,
     .max = 1e6,
     .help = "Requests a second."},
    {.name = "prompt",
     .type = OPT_FRACTION,
     .at = AT(prompt),
     .min = 1,
     .max = 1e8,
     .help = "Tokens of a prompt, mean."},
    {.name = "output",
     .type = OPT_FRACTION,
     .at = AT(output),
     .min = 1,
     .max = 1e8,
     .help = "Tokens of an answer, mean."},
    {.name = "trace",
     .type = OPT_STRING,
     .at = AT(trace),
     .help = "Take the lengths from a recorded load: CSV or JSON lines, plain or gzip."},
    {.name = "ttft",
     .type = OPT_SECONDS,
     .at = AT(ttft),
     .min = 0,
     .max = 3600,
     .help = "Promise: seconds to the first token."},
    {.name = "itl",
     .type = OPT_SECONDS,
     .at = AT(itl),
     .min = 0,
     .max = 3600,
     .help = "Promise: seconds between tokens."},
    {.name = "price",
     .type = OPT_FRACTION,
     .at = AT(price),
     .min = 0,
     .max = 1e6,
     .help = "Price of one card for an hour."},
    {.name = "bandwidth",
     .type = OPT_FRACTION,
     .at = AT(bandwidth),
     .min = 0.1,
     .max = 1e6,
     .help = "GB/s that one card or the CPU reads, instead of the table's or the measured."},
    {.name = "tflops",
     .type = OPT_FRACTION,
     .at = AT(tflops),
     .min = 0.001,
     .max = 1e6,
     .help = "TFLOP/s of one card or the CPU, in 16 bit and in 8."},
    {.name = "measure",
     .type = OPT_BOOL,
     .at = AT(measure),
     .help = "Without a card: measure first what this machine's CPU reads and computes (some "
             "seconds of all its cores, 512 MiB)."},
    {.name = "machine",
     .type = OPT_STRING,
     .at = AT(machine),
     .help = "The same from a file that `evenkeel-bench kernels --limits --report FILE` wrote, on "
             "another machine perhaps; --device-memory is then that one's."},
    {.name = "estimate",
     .type = OPT_BOOL,
     .at = AT(estimate),
     .help = "Plan also an architecture that evenkeel-server does not load, for another engine: by "
             "the usual keys of its config.json, whatever else it has."},
    {.name = "explain", .type = OPT_BOOL, .at = AT(explain), .help = "Show the arithmetic."},
    {.name = "json", .alias = "j", .type = OPT_BOOL, .at = AT(json), .help = "Answer in JSON."},
    {.name = "html", .type = OPT_STRING, .at = AT(html), .help = "Write a report to this file."},
    {.name = "list-gpus", .type = OPT_BOOL, .at = AT(list), .help = "List the cards and end."},
    {.name = "page",
     .type = OPT_BOOL,
     .at = AT(page),
     .help = "Print the cards as the Markdown of docs/planning.md and end."},
    {0}};

static int plan_refuse(const char *why, int code)
{
    (void)fprintf(stderr, "evenkeelctl plan: %s\n", why);
    return code;
}

static int read_trace(const char *path, struct plan_trace *ret_trace, struct ek_fault *fault)
{
    static char block[65536];
    struct ek_buf text = {.limit = TRACE_MOST};
    gzFile in = gzopen(path, "rb");
    int n = 0, r;
    if (!in)
        return ek_fault_set(fault, "trace", "--trace %.300s: %s", path, strerror(errno));
    while ((n = gzread(in, block, sizeof(block))) > 0)
        (void)ek_buf_add(&text, block, (size_t)n);
    (void)gzclose(in); /* only read */
    if (n < 0 || !ek_buf_ok(&text))
        r = ek_fault_set(fault, "trace", "--trace %.300s cannot be read or is too large", path);
    else
        r = plan_trace_read(text.data ? text.data : "", text.len, ret_trace, fault);
    ek_buf_done(&text);
    return r;
}

static int set_load(const struct plan_options *o, struct plan_question *q, struct ek_fault *fault)
{
    struct plan_trace t = {.prompt_mean = PROMPT, .output_mean = OUTPUT};
    if (o->trace && (o->prompt > 0 || o->output > 0))
        return ek_fault_set(fault, "trace",
                            "--trace and --prompt or --output both say the lengths; "
                            "leave one out");
    int r = o->trace ? read_trace(o->trace, &t, fault) : 0;
    if (r < 0)
        return r;
    q->load_known = o->trace || o->prompt > 0 || o->output > 0 || o->rate > 0;
    q->load = (struct plan_load){.rate = o->rate,
                                 .prompt = o->prompt > 0 ? o->prompt : t.prompt_mean,
                                 .output = o->output > 0 ? o->output : t.output_mean,
                                 .ttft_s = o->ttft,
                                 .itl_s = o->itl};
    double most = q->shape.max_len;
    if (!q->load_known && q->load.prompt + q->load.output > most) {
        q->load.prompt = most * 0.75;
        q->load.output = most * 0.25;
    }
    if (q->load.prompt + q->load.output > most)
        return ek_fault_set(
            fault, "prompt",
            "prompts of %.0f and answers of %.0f tokens are more than the model's %u",
            q->load.prompt, q->load.output, q->shape.max_len);
    return 0;
}

static int no_card(const char *name, struct ek_fault *fault)
{
    struct ek_buf names = {0};
    plan_gpu_names(&names);
    int r = ek_fault_set(fault, "gpu", "there is no card '%.40s' in the table; %.350s", name,
                         ek_buf_ok(&names) ? names.data : "");
    ek_buf_done(&names);
    return r;
}

/* This machine's CPU, or that of the machine where --machine was written. */
static int set_cpu(const struct plan_options *o, struct plan_question *q, struct ek_fault *fault)
{
    q->device = o->machine ? "the CPU of --machine" : "the CPU of this machine";
    q->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    q->speed_given = (o->bandwidth > 0 && o->tflops > 0) || o->measure || o->machine;
    q->speed = plan_gpu_speed(NULL);
    if (o->measure && o->machine)
        return ek_fault_set(fault, "measure",
                            "--measure and --machine both say how fast the CPU is; leave one out");
    if (o->measure)
        return plan_machine_measure(&q->speed, fault);
    if (!o->machine)
        return 0;
    json_t *report = json_load_file(o->machine, 0, NULL);
    int r = report ? plan_machine_read(report, &q->speed, fault)
                   : ek_fault_set(fault, "machine",
                                  "--machine %.300s is no report that evenkeel-bench wrote",
                                  o->machine);
    json_decref(report);
    return r;
}

static int set_device(const struct plan_options *o, struct plan_question *q, struct ek_fault *fault)
{
    const struct plan_gpu *g = o->gpu ? plan_gpu_find(o->gpu) : NULL;
    int r = 0;
    if (o->gpu && !g)
        return no_card(o->gpu, fault);
    q->gpu = g || (o->memory_gib > 0 && !o->machine);
    if (q->gpu && (o->measure || o->machine))
        return ek_fault_set(fault, "measure",
                            "--measure and --machine are of a CPU; leave them out, or %s",
                            g ? "--gpu" : "--device-memory");
    if (g) {
        q->device = g->text;
        q->memory_bytes = g->memory_gib * GIB;
        q->speed = plan_gpu_speed(g);
    } else if (q->gpu) { /* a middling card */
        q->device = "a card";
        q->speed =
            (struct plan_device){.read_bytes_s = 1000e9, .flops = 150e12, .link_bytes_s = 32e9};
    } else {
        r = set_cpu(o, q, fault);
    }
    if (o->memory_gib > 0)
        q->memory_bytes = o->memory_gib * GIB;
    if (o->bandwidth > 0)
        q->speed.read_bytes_s = o->bandwidth * 1e9;
    if (o->tflops > 0) {
        q->speed.flops = o->tflops * 1e12;
        q->speed.flops8 = 0;
    }
    return r;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Some number of cards for each stage can be laid out, or the one that was asked for. */
static int check_layout(const struct plan_options *o, struct ek_fault *fault)
{
    const uint32_t stages = (uint32_t)o->stages, nodes = (uint32_t)o->nodes;
    const bool gpu =
        o->gpu || (o->memory_gib > 0 && !o->machine); /* ranks of a CPU need no cards */
    const uint32_t here = gpu ? (uint32_t)o->gpus : 64;
    const uint32_t most = (uint32_t)(here * o->nodes / o->stages);
    uint32_t cards = o->parallel ? (uint32_t)o->parallel : 1;

    if (stages * nodes == 1 && o->parallel > o->gpus)
        return ek_fault_set(fault, "tensor-parallel-size",
                            "--tensor-parallel-size %llu is more than --gpus %llu",
                            (unsigned long long)o->parallel, (unsigned long long)o->gpus);
    while (!o->parallel && cards < most && !plan_layout_fits(cards, stages, nodes, here))
        cards *= 2;
    if (plan_layout_fits(cards, stages, nodes, here))
        return 0;
    return ek_fault_set(fault, "pipeline-parallel-size",
                        "--pipeline-parallel-size %u with --tensor-parallel-size %u cannot be laid "
                        "out on --nnodes %u machines of --gpus %llu: each needs as many of the "
                        "ranks, and stages within machines or over whole ones",
                        stages, cards, nodes, (unsigned long long)o->gpus);
}

/* A number for an unknown architecture is worse than none. */
static int check_loads(const struct plan_shape *s, struct ek_fault *fault)
{
    struct ek_fault why = {0};
    int r = plan_shape_loads(s, &why);
    return r < 0 ? ek_fault_set(fault, "architectures",
                                "%.380s; take another model, or --estimate for another engine",
                                why.msg)
                 : 0;
}

static int set_question(const struct plan_options *o, const char *model, struct plan_question *q,
                        struct ek_fault *fault)
{
    *q = (struct plan_question){.price_hour = o->price,
                                .cards = (uint32_t)o->gpus,
                                .share = o->share,
                                .max_len = (uint32_t)o->max_model_len,
                                .seqs = (uint32_t)o->seqs,
                                .tokens = (uint32_t)o->tokens,
                                .model = is_directory(model) ? model : NULL,
                                .cards_each = (uint32_t)o->parallel,
                                .stages = (uint32_t)o->stages,
                                .nodes = (uint32_t)o->nodes};
    q->weight_bits = strcmp(o->weights, "auto") == 0 ? 0
                     : strcmp(o->weights, "16") == 0 ? 16
                     : strcmp(o->weights, "8") == 0  ? 8
                                                     : 4;
    q->kv_bits = strcmp(o->kv, "any") == 0 ? 0 : strcmp(o->kv, "fp8") == 0 ? 8 : 16;
    int r = check_layout(o, fault);
    if (r < 0)
        return r;
    r = plan_shape_read(model, &q->shape, fault);
    if (r == 0 && !o->estimate)
        r = check_loads(&q->shape, fault);
    if (r == 0 && q->max_len > q->shape.max_len)
        r = ek_fault_set(fault, "max-model-len", "--max-model-len %u is more than the model's %u",
                         q->max_len, q->shape.max_len);
    if (r == 0)
        r = set_device(o, q, fault);
    return r == 0 ? set_load(o, q, fault) : r;
}

static int write_html(const struct plan_question *q, const struct plan_answer *a, const char *path)
{
    struct ek_buf out = {0};
    plan_html(q, a, &out);
    FILE *f = ek_buf_ok(&out) ? fopen(path, "we") : NULL;
    bool ok = f && fwrite(out.data, 1, out.len, f) == out.len;
    if (f)
        ok &= fclose(f) == 0;
    if (!ok)
        (void)fprintf(stderr, "evenkeelctl plan: --html %s: %s\n", path,
                      ek_buf_ok(&out) ? strerror(errno) : "out of memory");
    ek_buf_done(&out);
    return ok ? CTL_OK : CTL_REFUSED;
}

/* On this machine's CPU the server itself knows best: its plan goes into the question. */
static json_t *ask_server(const struct plan_options *o, const char *model, struct plan_question *q,
                          struct plan_fit *fit)
{
    json_t *plan = NULL;
    char said[400] = "";
    bool smaller = q->weight_bits && q->weight_bits < q->shape.weight_bits;
    const struct plan_server_request r = {.model = model,
                                          .weight_bits = smaller ? q->weight_bits : 0,
                                          .kv_bits = q->kv_bits,
                                          .share = q->share,
                                          .max_len = q->max_len,
                                          .stages = q->stages,
                                          .nodes = q->nodes,
                                          .seqs = q->seqs,
                                          .tokens = q->tokens};
    if (q->gpu || o->machine || (q->weight_bits && !smaller) || !is_directory(model))
        return NULL;
    int code = plan_server_ask(&r, &plan, fit, said);
    if (code == 0)
        q->own = fit;
    else if (code == -EBADMSG || code == -E2BIG)
        (void)fprintf(stderr, "evenkeelctl plan: evenkeel-server --dry-run says: %s\n", said);
    return plan;
}

/* For a card, whether or not it is here, evenkeel-server plans the settings that were chosen. */
static json_t *ask_about_card(const char *model, const struct plan_question *q,
                              struct plan_answer *a)
{
    json_t *plan = NULL;
    const uint32_t bits = a->chosen.setup.weight_bits;
    const struct plan_server_request r = {.model = model,
                                          .card = true,
                                          .weight_bits = bits < q->shape.weight_bits ? bits : 0,
                                          .kv_bits = a->chosen.setup.kv_bits,
                                          .memory_bytes = q->memory_bytes,
                                          .share = q->share,
                                          .max_len = q->max_len,
                                          .seqs = a->seqs,
                                          .tokens = a->tokens};
    if (!q->gpu || !a->fits || !is_directory(model) || a->chosen.setup.cards > 1 ||
        q->stages > 1) /* its ranks need the cards to be there */
        return NULL;
    int code = plan_server_ask(&r, &plan, &a->server, a->server_said);
    a->server_asked = code == 0 || code == -E2BIG || code == -EBADMSG;
    a->server_fits = code == 0;
    return plan;
}

static int plan_answer(const struct plan_options *o, const char *model,
                       const struct plan_question *asked)
{
    struct plan_question with = *asked, *q = &with;
    struct plan_answer a;
    struct plan_fit own;
    json_t *server = ask_server(o, model, q, &own);
    plan_advise(q, &a);
    if (!server)
        server = ask_about_card(model, q, &a);
    int code = o->html ? write_html(q, &a, o->html) : CTL_OK;
    if (code != CTL_OK) {
        json_decref(server);
        return code;
    }
    if (o->json) {
        json_t *j = plan_json(q, &a);
        bool ok = j &&
                  json_object_set(j, "evenkeel_server_plan", server ? server : json_null()) == 0 &&
                  json_dumpf(j, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0 &&
                  putchar('\n') != EOF && fflush(stdout) == 0;
        json_decref(j);
        code = ok ? CTL_OK : CTL_REFUSED;
    } else {
        struct plan_style style = {.explain = o->explain,
                                   .colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR")};
        struct ek_buf out = {0};
        plan_write(q, &a, &style, &out);
        code = verb_print_buf(&out);
    }
    json_decref(server);
    return code != CTL_OK ? code : a.fits ? CTL_OK : CTL_REFUSED;
}

static int plan_run(void *options, char *model)
{
    const struct plan_options *o = options;
    struct plan_question q;
    struct ek_fault fault = {0};

    if (o->list || o->page) {
        struct ek_buf out = {0};
        if (o->page)
            plan_gpu_page(&out);
        for (uint32_t i = 0; !o->page && plan_gpu_at(i); i++)
            (void)ek_buf_printf(&out, "%-10s %s, %.1f GiB\n", plan_gpu_at(i)->name,
                                plan_gpu_at(i)->text, plan_gpu_at(i)->memory_gib);
        return verb_print_buf(&out);
    }
    if (!model)
        return plan_refuse("name a model directory or its config.json", CTL_USAGE);
    int r = set_question(o, model, &q, &fault);
    return r == -EBADMSG ? plan_refuse(fault.msg, CTL_USAGE)
           : r < 0       ? plan_refuse(ek_strerror(r), CTL_REFUSED)
                         : plan_answer(o, model, &q);
}

const struct verb verb_plan = {
    .name = "plan",
    .word = "MODEL",
    .about = "what fits which cards, which settings, how fast",
    .help =
        "Answers from a model directory (or its config.json alone) and a card: the memory of one\n"
        "card, the settings that fit, predicted speed with its band, what binds, how many\n"
        "replicas a load needs and what that costs, and flags to paste for evenkeel-server and\n"
        "vLLM. Exit status 1: it does not fit, and what would; 2: evenkeel-server does not load\n"
        "the architecture (--estimate plans it for another engine).",
    .options = table,
    .options_bytes = sizeof(struct plan_options),
    .run = plan_run};
