/*
 * What shim_wgmma.h promises. Descriptors are read as the PTX ISA has them ("Asynchronous Warpgroup
 * Level Matrix Shared Memory Layout"): bits 0-13 address / 16, 16-29 leading and 32-45 stride byte
 * offset / 16, 49-51 base offset, 62-63 swizzling (1: 128 bytes, 2: 64, 3: 32). Its canonical
 * layouts, of 16-bit numbers in units of 8 of them (T = 8, W = 8, 4, 2 units of a swizzled row):
 *
 *   K-major   none  ((8,m),(T,2k)) : ((T,SBO),(1,LBO))       W  ((8,m),(T,2k)) : ((WT,SBO),(1,T))
 *   MN-major  none  ((T,1,m),(8,k)) : ((1,T,SBO),(T,LBO))    W  ((T,W,m),(8,k)) :
 * ((1,T,LBO),(WT,SBO))
 *
 * and then bits 4.. of the address of each 16 bytes change by bits 7.. of it, as many as log2 W. A
 * pattern begins where the address is a multiple of 8 W units (1024 bytes for 128B), unless a base
 * offset says otherwise: none is taken here, so a descriptor may begin in the first row of one
 * only.
 *
 * Fragments are those of mma.m16n8k16, four warps of 16 rows and N columns ("Matrix Fragments for
 * wgmma.mma_async.m64nNk16").
 */
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <vector>

#include "tests/cuda/shim.h"
#include "tests/cuda/shim_run.h"

namespace
{

enum { MOST = 1024, MOST_D = 128 };
/* Where a block's dynamic memory begins in its window: no multiple of 1024, for those that forget.
 */
constexpr uint32_t WINDOW = 1040;
constexpr uint32_t UNTOUCHED = 0x7fa5a5a5; /* not a number */

struct piece { /* 16 bytes of shared memory */
    enum { NEVER, LANDED, SHOWN } state;
    unsigned copies;  /* under way */
    unsigned readers; /* products of warps under way that read it */
    unsigned shown;   /* barriers that had been when it was made visible, */
    unsigned read;    /* and when it was read last, plus 1 */
};

struct sums { /* accumulators that products under way write */
    float *at, value[MOST_D];
    unsigned size, left;
};

struct product {
    struct shim_wgmma what;
    uint32_t a[4];        /* as its registers were */
    uint16_t rows[2][16]; /* of A, when it is in registers */
    float *d;
    unsigned n, group;
};

struct thread {
    std::vector<unsigned> landed; /* pieces that it has not shown */
    std::vector<sums> under_way;
    std::vector<product> products;
    unsigned groups;
    bool fenced;
    uint64_t said; /* of all it has begun: warps of a group must agree */
};

struct block {
    unsigned char *at;
    size_t bytes;
    unsigned count; /* of threads */
    bool used;      /* by a kernel with wgmma: what follows is kept only then */
    unsigned barriers;
    std::vector<piece> pieces;
    std::vector<thread> threads;
};
SHIM_OWN struct block g;

[[noreturn]] __attribute__((format(printf, 1, 2))) void wrong(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "shim: block %u,%u thread %u: ", blockIdx.x, blockIdx.y, threadIdx.x);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

thread &self()
{
    return g.threads[threadIdx.x];
}

/* The piece at an address of the window. */
piece &piece_at(uint32_t address)
{
    if (address < WINDOW || address - WINDOW + 16 > g.bytes)
        wrong("wgmma reads address %u: shared memory is %u to %zu", address, WINDOW,
              WINDOW + g.bytes);
    return g.pieces[(address - WINDOW) / 16];
}

unsigned index_of(const void *shared)
{
    const auto *at = (const unsigned char *)shared;

    return g.used && at >= g.at && at < g.at + g.bytes ? (unsigned)(at - g.at) / 16 : ~0u;
}

void check_descriptor(uint64_t d)
{
    const unsigned mode = (unsigned)(d >> 62), wide = mode == 0 ? 1 : 16u >> mode;
    const uint32_t start = (uint32_t)(d & 0x3fff) << 4;

    if (d >> 49 & 7)
        wrong("a descriptor with a base offset");
    if (mode > 0 && start % (8 * 16 * wide) >= 16 * wide)
        wrong("a descriptor begins at %u, not in the first row of a swizzled pattern", start);
    if (d & 0x3ff1c000c000c000ull)
        wrong("a descriptor %016llx with bits that mean nothing", (unsigned long long)d);
}

/* Begins at a warp's 16 rows of A, or at B: the pieces that are read, once each. */
template <class F> void each_piece(uint64_t d, bool columns, unsigned first, unsigned count, F f)
{
    for (unsigned i = first; i < first + count; i += columns ? 8 : 1)
        for (unsigned k = 0; k < 16; k += columns ? 1 : 8)
            f(piece_at(shim_wgmma_address(d, columns, i, k) & ~15u));
}

/* The same of all that a product of this warp reads. */
template <class F> void each_operand(const product &p, F f)
{
    if (!p.what.a)
        each_piece(p.what.a_at, false, threadIdx.x / 32 % 4 * 16, 16, f);
    each_piece(p.what.b_at, p.what.b_columns, 0, p.n, f);
}

void check_readable(const piece &p)
{
    if (p.state == piece::NEVER)
        wrong("wgmma reads what was never copied");
    if (p.copies > 0)
        wrong("wgmma reads what is still being copied");
    if (p.state == piece::LANDED)
        wrong("wgmma reads what was not made visible after its copy");
    if (p.shown >= g.barriers)
        wrong("wgmma reads what was made visible without a barrier behind it");
}

float number(bool half, uint16_t bits)
{
    return half ? to_float(f16{bits}) : to_float(bf16{bits});
}

/* Numbers k = 0 .. 15 of row (column) i of a matrix in shared memory. */
void from_shared(const product &p, uint64_t d, bool columns, unsigned i, float to[16])
{
    for (unsigned k = 0; k < 16; k += columns ? 1 : 8) {
        uint16_t bits[8];
        const unsigned count = columns ? 1 : 8; /* that lie together */
        memcpy(bits, g.at + (shim_wgmma_address(d, columns, i, k) - WINDOW), 2 * count);
        for (unsigned e = 0; e < count; e++)
            to[k + e] = number(p.what.half, bits[e]);
    }
}

sums *sums_of(thread &t, float *d)
{
    for (sums &s : t.under_way)
        if (s.at == d)
            return &s;
    return nullptr;
}

/* This lane's share of a product. */
void compute(const product &p, float *d)
{
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    float a[2][16], b[16];

    for (unsigned i = 0; i < 2; i++) {
        if (!p.what.a)
            from_shared(p, p.what.a_at, false, first + 8 * i, a[i]);
        for (unsigned k = 0; p.what.a && k < 16; k++)
            a[i][k] = number(p.what.half, p.rows[i][k]);
    }
    for (unsigned j = 0; j < p.n / 8; j++)
        for (unsigned e = 0; e < 2; e++) {
            from_shared(p, p.what.b_at, p.what.b_columns, j * 8 + lane % 4 * 2 + e, b);
            for (unsigned i = 0; i < 2; i++) {
                float *to = &d[j * 4 + 2 * i + e], sum = p.what.adds ? *to : 0.0f;
                for (unsigned k = 0; k < 16; k++)
                    sum += a[i][k] * b[k];
                *to = sum;
            }
        }
}

void end_product(thread &t, const product &p)
{
    sums *s = sums_of(t, p.d);

    if (p.what.a && memcmp(p.what.a, p.a, sizeof(p.a)) != 0)
        wrong("registers of A were written while wgmma read them");
    compute(p, s->value);
    if (threadIdx.x % 32 == 0)
        each_operand(p, [](piece &x) {
            x.readers--;
            x.read = g.barriers + 1;
        });
    if (--s->left > 0)
        return;
    for (unsigned i = 0; i < s->size; i++) {
        uint32_t bits;
        memcpy(&bits, s->at + i, sizeof(bits));
        if (bits != UNTOUCHED)
            wrong("accumulators were written while wgmma had them");
    }
    memcpy(s->at, s->value, s->size * sizeof(float));
    t.under_way.erase(t.under_way.begin() + (s - t.under_way.data()));
}

struct told { /* to the other lanes */
    uint32_t a[4];
    uint64_t a_at, b_at;
    unsigned n;
};

} // namespace

extern "C" uint32_t shim_wgmma_address(uint64_t d, int columns, unsigned i, unsigned k)
{
    const uint32_t start = (uint32_t)(d & 0x3fff) << 4, mode = (uint32_t)(d >> 62);
    const uint32_t lbo = (uint32_t)(d >> 16 & 0x3fff) << 4, sbo = (uint32_t)(d >> 32 & 0x3fff) << 4;
    const uint32_t wide = mode == 0 ? 1 : 16u >> mode; /* units of a row of the pattern */
    uint32_t at;

    if (!columns)
        at = i % 8 * wide * 16 + i / 8 * sbo + k % 8 * 2 + k / 8 * (mode == 0 ? lbo : 16);
    else if (mode == 0)
        at = i % 8 * 2 + i / 8 * sbo + k % 8 * 16 + k / 8 * lbo;
    else
        at = i % 8 * 2 + i / 8 % wide * 16 + i / 8 / wide * lbo + k % 8 * wide * 16 + k / 8 * sbo;
    at += start;
    return at ^ (at >> 7 & (wide - 1)) << 4;
}

void shim_wgmma_block(unsigned char *dynamic, size_t bytes, unsigned threads)
{
    g.at = dynamic;
    g.bytes = bytes / 16 * 16;
    g.count = threads;
    g.used = false;
}

void shim_wgmma_end()
{
    for (unsigned i = 0; g.used && i < g.count; i++) {
        if (!g.threads[i].products.empty())
            wrong("thread %u left with wgmma under way", i);
        if (g.threads[i].said != g.threads[i / 128 * 128].said)
            wrong("thread %u did not do the products of its warpgroup", i);
    }
}

void shim_wgmma_copies(const void *to)
{
    const unsigned i = index_of(to);

    if (i == ~0u)
        return;
    if (g.pieces[i].readers > 0)
        wrong("a copy to what wgmma is reading");
    if (g.pieces[i].read > g.barriers)
        wrong("a copy to what wgmma has read, without a barrier between");
    g.pieces[i].copies++;
}

void shim_wgmma_landed(const void *to)
{
    const unsigned i = index_of(to);

    if (i == ~0u)
        return;
    g.pieces[i].copies--;
    g.pieces[i].state = piece::LANDED;
    self().landed.push_back(i);
}

void shim_async_visible()
{
    for (unsigned i : self().landed) {
        g.pieces[i].state = piece::SHOWN;
        g.pieces[i].shown = g.barriers;
    }
    self().landed.clear();
}

void shim_wgmma_barrier()
{
    g.barriers++;
}

uint32_t shim_shared_at(const void *shared)
{
    if (!g.used) {
        g.used = true;
        g.barriers = 0;
        g.pieces.assign(g.bytes / 16, piece());
        g.threads.assign(g.count, thread());
    }
    return (uint32_t)((const unsigned char *)shared - g.at) + WINDOW;
}

void shim_wgmma_fence()
{
    self().fenced = true;
}

void shim_wgmma_commit()
{
    self().groups++;
}

void shim_wgmma_begin(float *d, unsigned n, const struct shim_wgmma &what)
{
    const unsigned lane = threadIdx.x % 32;
    struct told mine = {{0, 0, 0, 0}, what.a_at, what.b_at, n};
    struct product p = {what, {0, 0, 0, 0}, {}, d, n, 0};

    if (what.a)
        memcpy(mine.a, what.a, sizeof(mine.a));
    memcpy(p.a, mine.a, sizeof(p.a));
    shim_sync_warp(SHIM_WGMMA, SHIM_ALL, &mine, sizeof(mine));
    for (unsigned i = 0; i < 32; i++) {
        const auto *other = (const struct told *)shim_lane(i);
        if (other->a_at != mine.a_at || other->b_at != mine.b_at || other->n != n)
            wrong("lanes disagree about a product");
    }
    for (unsigned q = 0; what.a && q < 4; q++) {
        const auto *other = (const struct told *)shim_lane(lane / 4 * 4 + q);
        for (unsigned e = 0; e < 8; e++) /* a0: row g; a1: row g + 8; a2, a3: columns 8 further */
            p.rows[e / 2 % 2][e / 4 * 8 + 2 * q + e % 2] =
                (uint16_t)(other->a[e / 2] >> e % 2 * 16);
    }
    if (lane == 0) {
        if (!what.a)
            check_descriptor(what.a_at);
        check_descriptor(what.b_at);
        each_operand(p, [](piece &x) {
            check_readable(x);
            x.readers++;
        });
    }
    thread &t = self();
    sums *s = sums_of(t, d);
    if (!s) {
        if (!t.fenced)
            wrong("wgmma without a fence before it");
        t.under_way.push_back({d, {}, n / 2, 0});
        s = &t.under_way.back();
        memcpy(s->value, d, n / 2 * sizeof(float));
        for (unsigned i = 0; i < n / 2; i++)
            memcpy(d + i, &UNTOUCHED, sizeof(float));
    }
    s->left++;
    p.group = t.groups;
    t.products.push_back(p);
    t.said = t.said * 6364136223846793005ull + what.a_at * 3 + what.b_at * 5 + n + 1;
}

void shim_wgmma_wait(unsigned left)
{
    thread &t = self();
    size_t done = 0;

    for (; done < t.products.size() && t.products[done].group + left < t.groups; done++)
        end_product(t, t.products[done]);
    t.products.erase(t.products.begin(), t.products.begin() + (long)done);
    t.fenced = t.fenced && done == 0;
}
