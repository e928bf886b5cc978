/*
 * Says what was found: each pair of places in the source once, with the lines that addr2line finds
 * for them. A program in which something was found that it did not expect ends with a failure.
 */
#include <dlfcn.h>
#include <set>
#include <stdio.h>
#include <string>
#include <tuple>
#include <unistd.h>

#include "tests/cuda/races_inner.h"

namespace
{

bool g_expected;
unsigned g_count[RACES_KINDS], g_unexpected;

std::set<std::tuple<int, uint32_t, uint32_t>> &told()
{
    static std::set<std::tuple<int, uint32_t, uint32_t>> all;
    return all;
}

/* "attend.cu:332 < attend.cu:360": the innermost first. */
std::string line_of(uint32_t pc)
{
    char command[4400], line[512];
    std::string all;
    Dl_info info;

    if (dladdr((const void *)&g_count, &info) == 0)
        return "?";
    (void)snprintf(command, sizeof(command), "addr2line -i -e '%s' 0x%x 2>/dev/null",
                   info.dli_fname, pc - 1);
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof(line), f)) {
        const std::string one = line;
        const size_t from = one.rfind('/') + 1, to = one.find_first_of(" \n", from);
        all += (all.empty() ? "" : " < ") + one.substr(from, to - from);
    }
    if (f)
        (void)pclose(f);
    return all.empty() ? "?" : all;
}

const char *why(enum races_kind kind)
{
    switch (kind) {
    case RACES_SHARED: return "shared memory, in no order";
    case RACES_GLOBAL: return "global memory, in no order";
    case RACES_COPY: return "an asynchronous copy is not waited for";
    case RACES_UNSET: return "shared memory that this block has not written";
    case RACES_OUTSIDE: return "outside";
    case RACES_UNALIGNED: return "not aligned";
    case RACES_LANES: return "not all come that are asked for";
    case RACES_UNREPEATED: return "differs when threads take turns in another order";
    case RACES_KINDS: break;
    }
    return "";
}

struct at_end {
    ~at_end()
    {
        if (g_unexpected == 0)
            return;
        fprintf(stderr, "races: %u found\n", g_unexpected);
        fflush(NULL);
        _exit(66);
    }
} g_at_end;

} // namespace

void races_report(enum races_kind kind, const char *what, uintptr_t at, size_t bytes,
                  const void *pc, const struct races_access *before)
{
    const uint32_t here = pc ? races_pc(pc) : 0;

    if (!told().insert({kind, here, before ? before->pc : 0}).second)
        return;
    g_count[kind]++;
    if (g_expected)
        return;
    g_unexpected++;
    fprintf(stderr, "races: %s: block %u, thread %u %s %zu bytes at %#zx (%s)", races_g.kernel,
            races_g.me >> 10, races_g.me & 1023, what, bytes, (size_t)at, why(kind));
    if (pc)
        fprintf(stderr, "\n    here:   %s", line_of(here).c_str());
    if (before)
        fprintf(stderr, "\n    before: %s, block %u, thread %u", line_of(before->pc).c_str(),
                (before->who & RACES_WHO) >> 10, before->who & 1023);
    fprintf(stderr, "\n");
}

bool races_lanes(const char *)
{
    g_count[RACES_LANES]++;
    return g_expected;
}

extern "C" void races_expect(bool expected)
{
    g_expected = expected;
}

extern "C" unsigned races_take(enum races_kind kind)
{
    unsigned count = g_count[kind];

    g_count[kind] = 0;
    told().clear();
    return count;
}
