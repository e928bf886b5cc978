/*
 * Each launch twice: what it writes to global memory is undone, threads and blocks take turns in
 * the opposite order, and the same bytes must come out. Some kernels may leave others.
 */
#include <bitset>
#include <string.h>
#include <unordered_map>

#include "tests/cuda/races_inner.h"

namespace
{

enum { PAGE = 4096 };

struct page {
    unsigned char before[PAGE], first[PAGE];
    std::bitset<PAGE> written;
};

bool g_repeats;
std::unordered_map<uintptr_t, page> g_pages;
page *g_last;
uintptr_t g_last_index;

/* Whose results may differ, and why. */
const char *const g_free[] = {
    "ek_order",          /* where in its expert's run a pair comes changes nothing */
    "ek_sample_collect", /* a list that is sorted, or not used when it is too long */
};

bool is_free(const char *kernel)
{
    for (const char *name : g_free)
        if (strcmp(name, kernel) == 0)
            return true;
    return false;
}

} // namespace

extern "C" void races_repeat(bool repeats)
{
    g_repeats = repeats;
}

bool races_repeats()
{
    return g_repeats;
}

void races_before_write(uintptr_t at, size_t bytes)
{
    if (!g_repeats)
        return;
    for (uintptr_t i = at; i < at + bytes; i++) {
        const uintptr_t index = i / PAGE;
        if (!g_last || g_last_index != index) {
            auto made = g_pages.try_emplace(index);
            g_last = &made.first->second;
            g_last_index = index;
            if (made.second) {
                memcpy(g_last->before, (const void *)(index * PAGE), PAGE);
                memcpy(g_last->first, (const void *)(index * PAGE), PAGE);
            }
        }
        g_last->written.set(i % PAGE);
    }
}

void races_rewind()
{
    for (auto &p : g_pages) {
        unsigned char *at = (unsigned char *)(p.first * PAGE);
        memcpy(p.second.first, at, PAGE);
        for (size_t i = 0; i < PAGE; i++)
            if (p.second.written[i])
                at[i] = p.second.before[i];
    }
}

void races_compare(const char *kernel)
{
    for (auto &p : g_pages) {
        const unsigned char *at = (const unsigned char *)(p.first * PAGE);
        for (size_t i = 0; i < PAGE; i++)
            if (p.second.written[i] && at[i] != p.second.first[i] && !is_free(kernel)) {
                races_report(RACES_UNREPEATED, "left", (uintptr_t)at + i, 1, NULL, NULL);
                break;
            }
    }
    g_pages.clear();
    g_last = nullptr;
}
