/*
 * evenkeel-bench: how fast kernels, engine and servers are, beside what the machine can do at most.
 * It measures with the program's own parts (kernels, engine) or as any client would (serve).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/bench/bench.h"
#include "server/bench/options.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_UNREACHED = 3 };

static const char help_text[] =
    "Usage: evenkeel-bench COMMAND [OPTION]...\n"
    "\n"
    "Commands:\n"
    "  kernels           each kernel of the CPU backend beside this machine's limits\n"
    "  engine            prefill and decode of a model, without HTTP\n"
    "  serve             load on any OpenAI-style server: rates, waiting times, goodput\n"
    "  compare A B       two reports side by side; what is worse in B\n"
    "  replay FILE       the scheduler over the load before a server's end\n"
    "\n"
    "evenkeel-bench COMMAND --help lists the options of a command.\n"
    "\n"
    "Exit status: 0 done, 1 requests failed or B is worse, 2 wrong usage or input, 3 the server\n"
    "cannot be reached.\n";

static int bench_print(struct ek_buf *text)
{
    bool ok = ek_buf_ok(text) && text->data && fputs(text->data, stdout) >= 0;

    ek_buf_done(text);
    return ok && fflush(stdout) == 0 ? EXIT_DONE : EXIT_FAILED;
}

static int say_help(enum bench_command command, enum ek_opt_format format)
{
    struct ek_buf text = {0};

    if (format == EK_OPT_HELP)
        (void)ek_buf_printf(&text, "Usage: evenkeel-bench %s%s [OPTION]...\n\n",
                            bench_command_names[command],
                            command == BENCH_COMPARE  ? " A.json B.json"
                            : command == BENCH_REPLAY ? " FILE"
                                                      : "");
    (void)ek_opt_write(bench_table(command), format, &text); /* a failure stays in `text` */
    return bench_print(&text);
}

static int bench_run(enum bench_command command, const struct bench_options *o,
                     struct ek_fault *fault)
{
    unsigned bad = 0;
    int r = 0;

    switch (command) {
    case BENCH_KERNELS: r = bench_kernels(o, fault); break;
    case BENCH_ENGINE: r = bench_engine(o, fault); break;
    case BENCH_SERVE: r = bench_serve(o, &bad, fault); break;
    case BENCH_COMPARE: r = bench_compare(o, &bad, fault); break;
    case BENCH_REPLAY: r = bench_replay(o, fault); break;
    case BENCH_COMMANDS: break;
    }
    if (r < 0)
        (void)fprintf(stderr, "evenkeel-bench: %s\n", fault->msg[0] ? fault->msg : ek_strerror(r));
    if (r == -ECONNREFUSED)
        return EXIT_UNREACHED;
    return r == -EBADMSG ? EXIT_USAGE : r < 0 || bad > 0 ? EXIT_FAILED : EXIT_DONE;
}

int main(int argc, char **argv)
{
    enum bench_command command = BENCH_KERNELS;
    struct bench_options o = {0};
    struct ek_fault fault = {.msg = ""};
    int status;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return fputs(help_text, stdout) >= 0 ? EXIT_DONE : EXIT_FAILED;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return puts("evenkeel-bench " EK_VERSION) >= 0 ? EXIT_DONE : EXIT_FAILED;
    int r = bench_options_parse(argc, argv, &command, &o, &fault);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeel-bench: %s\n", fault.msg[0] ? fault.msg : ek_strerror(r));
        status = EXIT_USAGE;
    } else if (o.help) {
        status = say_help(command, EK_OPT_HELP);
    } else if (o.print_options) {
        status = say_help(command, ek_opt_format(o.print_options));
    } else {
        status = bench_run(command, &o, &fault);
    }
    bench_options_free(command, &o);
    return status;
}
