/* See tiles.h. The registers are the thread's own; nothing here allocates or takes a lock, for it
 * runs in a signal handler. */
#include "tests/unit/kernels/tiles.h"

#include <immintrin.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "common/err.h"
#include "kernels/cpu/tier.h"
#include "kernels/cpu/tiles.h"

#define MOST 16u

struct tile {
    uint8_t row[MOST][64];
};

static _Thread_local struct tiles_config g_config; /* palette 0: none is loaded */
static _Thread_local struct tile g_tile[8];
static _Atomic uint64_t g_count;
static _Atomic bool g_emulated;

/* One instruction, decoded. */
struct tile_insn {
    uint8_t opcode, prefix; /* of VEX map 2; 0: none, 1: 66, 2: f3, 3: f2 */
    uint8_t reg, rm, third;
    bool memory;
    uint64_t base, stride;
    uint32_t bytes;
};

static uint64_t reg_of(const ucontext_t *u, uint32_t n)
{
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)u->uc_mcontext.gregs[at[n]];
}

static bool refuse(const char *why)
{
    (void)!write(STDERR_FILENO, why, strlen(why));
    (void)!write(STDERR_FILENO, "\n", 1);
    return false;
}

/* The memory operand behind a ModRM byte; false if it is none that tiles take. */
static bool decode_memory(const ucontext_t *u, const uint8_t *p, uint8_t x, uint8_t b,
                          struct tile_insn *ret)
{
    const uint8_t mod = p[0] >> 6, rm = p[0] & 7u;
    const uint8_t *next = p + 1;
    uint32_t base = rm | b;
    int32_t far = 0;

    if (rm == 4) {
        const uint8_t sib = *next++, index = ((sib >> 3) & 7u) | x;
        base = (sib & 7u) | b;
        ret->stride = index == 4 ? 0 : reg_of(u, index) << (sib >> 6);
    }
    const bool none = mod == 0 && (base & 7u) == 5; /* of the SIB byte, or relative to the next */
    if (mod == 1) {
        far = (int8_t)*next++;
    } else if (mod == 2 || none) {
        memcpy(&far, next, sizeof(far));
        next += sizeof(far);
    }
    ret->bytes = 4 + (uint32_t)(next - p);
    ret->base = (uint64_t)(int64_t)far;
    if (!none)
        ret->base += reg_of(u, base);
    else if (rm != 4)
        ret->base += (uint64_t)u->uc_mcontext.gregs[REG_RIP] + ret->bytes;
    return rm == 4 || ret->opcode == 0x49; /* rows need a base and an index */
}

static bool decode(const ucontext_t *u, struct tile_insn *ret)
{
    const uint8_t *p = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];

    if (p[0] != 0xc4 || (p[1] & 0x1fu) != 2 || (p[2] & 0x84u) != 0) /* map 0F38, W0, 128 bits */
        return false;
    if (p[3] != 0x49 && p[3] != 0x4b && p[3] != 0x5c && p[3] != 0x5e)
        return false;
    const uint8_t x = p[1] & 0x40u ? 0 : 8, b = p[1] & 0x20u ? 0 : 8;
    *ret = (struct tile_insn){.opcode = p[3],
                              .prefix = p[2] & 3u,
                              .reg = (p[4] >> 3) & 7u,
                              .rm = p[4] & 7u,
                              .third = (uint8_t)(~p[2] >> 3) & 15u,
                              .memory = p[4] >> 6 != 3,
                              .bytes = 5};
    return !ret->memory || decode_memory(u, p + 4, x, b, ret);
}

static uint32_t rows_of(uint32_t t)
{
    return g_config.rows[t];
}

static uint32_t width_of(uint32_t t)
{
    return g_config.row_bytes[t];
}

/* Rows from `rows` on and bytes from `width` on are zeroed by whatever writes a tile. */
static void put(uint32_t t, const struct tile *from)
{
    struct tile new = {0};

    for (uint32_t i = 0; i < rows_of(t); i++)
        memcpy(new.row[i], from->row[i], width_of(t));
    g_tile[t] = new;
}

static bool load_config(const void *at)
{
    static const uint8_t zeros[16];
    struct tiles_config c;

    memcpy(&c, at, sizeof(c));
    if (c.palette != 1 || c.start_row != 0)
        return refuse("ldtilecfg: palette or start row");
    if (memcmp(c.reserved, zeros, sizeof(c.reserved)) != 0 ||
        memcmp(c.row_bytes + 8, zeros, 16) != 0 || memcmp(c.rows + 8, zeros, 8) != 0)
        return refuse("ldtilecfg: reserved bytes");
    for (uint32_t t = 0; t < 8; t++)
        if (c.rows[t] > MOST || c.row_bytes[t] > 64 || (c.rows[t] == 0) != (c.row_bytes[t] == 0))
            return refuse("ldtilecfg: a tile's shape");
    g_config = c;
    memset(g_tile, 0, sizeof(g_tile));
    return true;
}

/* The columns of a row side by side; each is what the manual says of an element. */
__attribute__((noinline, target("avx512f"))) static void pairs_row(uint32_t in, uint32_t w,
                                                                   uint32_t row, struct tile *sums)
{
    const __m512i upper = _mm512_set1_epi32(-65536);
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();

    for (uint32_t k = 0; k < width_of(in) / 4; k++) {
        const __m512i v = _mm512_loadu_si512(g_tile[w].row[k]);
        int32_t two;
        memcpy(&two, g_tile[in].row[row] + (size_t)k * 4, sizeof(two));
        const __m512i x = _mm512_set1_epi32(two);
        even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                               _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), even);
        odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, upper)),
                              _mm512_castsi512_ps(_mm512_and_si512(v, upper)), odd);
    }
    const __m512 sum = _mm512_loadu_ps(sums->row[row]);
    _mm512_storeu_ps(sums->row[row], _mm512_add_ps(sum, _mm512_add_ps(even, odd)));
}

/* `in_signed`, `w_signed`: how bytes are read. */
static void fours_row(uint32_t t, const struct tile_insn *i, uint32_t row, struct tile *to)
{
    const bool in_signed = i->prefix >= 2, w_signed = i->prefix == 3 || i->prefix == 1;
    const uint8_t *in = g_tile[i->rm].row[row];

    for (uint32_t col = 0; col < width_of(t) / 4; col++) {
        uint32_t sum;
        memcpy(&sum, to->row[row] + (size_t)col * 4, sizeof(sum));
        for (uint32_t k = 0; k < width_of(i->rm); k++) {
            const uint8_t w = g_tile[i->third].row[k / 4][col * 4 + k % 4];
            const int a = in_signed ? (int8_t)in[k] : in[k], b = w_signed ? (int8_t)w : w;
            sum += (uint32_t)(a * b);
        }
        memcpy(to->row[row] + (size_t)col * 4, &sum, sizeof(sum));
    }
}

static bool multiply(const struct tile_insn *i)
{
    const uint32_t t = i->reg, in = i->rm, w = i->third;

    if (w >= 8 || t == in || t == w || in == w)
        return refuse("tile product: registers");
    if (rows_of(t) == 0 || rows_of(in) == 0 || rows_of(w) == 0)
        return refuse("tile product: a tile that was not configured");
    if (rows_of(t) != rows_of(in) || width_of(in) / 4 != rows_of(w) || width_of(t) != width_of(w) ||
        width_of(t) % 4 != 0 || width_of(in) % 4 != 0)
        return refuse("tile product: shapes");
    struct tile sums = g_tile[t];
    const uint32_t before = _mm_getcsr();
    _mm_setcsr(0x1f80u | 0x8040u); /* to nearest even, no denormals in or out, whatever was set */
    for (uint32_t row = 0; row < rows_of(t); row++) {
        if (i->opcode == 0x5c)
            pairs_row(in, w, row, &sums);
        else
            fours_row(t, i, row, &sums);
    }
    _mm_setcsr(before);
    put(t, &sums);
    return true;
}

static bool move(const struct tile_insn *i)
{
    const bool store = i->prefix == 2;
    struct tile now = {0};

    if (rows_of(i->reg) == 0)
        return refuse("tile move: a tile that was not configured");
    for (uint32_t row = 0; row < rows_of(i->reg); row++) {
        char *at = (char *)(i->base + row * i->stride); /* NOLINT: an address */
        if (store)
            memcpy(at, g_tile[i->reg].row[row], width_of(i->reg));
        else
            memcpy(now.row[row], at, width_of(i->reg));
    }
    if (!store)
        put(i->reg, &now);
    return true;
}

static bool perform(const struct tile_insn *i)
{
    if (i->opcode == 0x49 && i->prefix == 0 && i->memory)
        return load_config((const void *)i->base); /* NOLINT: an address */
    if (i->opcode == 0x49 && i->prefix == 0 && i->reg == 0 && i->rm == 0) {
        memset(&g_config, 0, sizeof(g_config));
        memset(g_tile, 0, sizeof(g_tile));
        return true;
    }
    if (g_config.palette == 0)
        return refuse("a tile instruction without a configuration");
    if (i->opcode == 0x49 && i->prefix == 3 && !i->memory && i->rm == 0) {
        memset(&g_tile[i->reg], 0, sizeof(g_tile[0]));
        return rows_of(i->reg) > 0 || refuse("tilezero: a tile that was not configured");
    }
    if (i->opcode == 0x4b && i->memory && i->prefix != 0)
        return move(i);
    if (!i->memory && ((i->opcode == 0x5c && i->prefix == 2) || i->opcode == 0x5e))
        return multiply(i);
    return refuse("an instruction that is not known here");
}

static void on_illegal(int number, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    struct tile_insn insn;

    (void)info;
    /* Those that follow at once need no signals of their own. */
    for (uint32_t done = 0;; done++) {
        if (!decode(u, &insn)) {
            if (done == 0)
                (void)signal(number, SIG_DFL); /* it is met again, and ends the process */
            return;
        }
        if (!perform(&insn)) {
            (void)signal(number, SIG_DFL);
            return;
        }
        atomic_fetch_add_explicit(&g_count, 1, memory_order_relaxed);
        u->uc_mcontext.gregs[REG_RIP] += insn.bytes;
    }
}

bool tiles_emulated(void)
{
    return g_emulated;
}

uint64_t tiles_count(void)
{
    return atomic_load(&g_count);
}

void __real_cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS]);
void __wrap_cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS]);
const struct cpu_ops *__real_cpu_tier_find(const char *name, struct ek_fault *fault);
const struct cpu_ops *__wrap_cpu_tier_find(const char *name, struct ek_fault *fault);

/* Behind the best one, so that a call that names none gets that. */
void __wrap_cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS])
{
    uint32_t n = 0;
    bool pairs = false;

    __real_cpu_tier_list(ret_tiers);
    for (; ret_tiers[n]; n++) {
        pairs = pairs || ret_tiers[n] == &cpu_ops_avx512bf16;
        if (ret_tiers[n] == &cpu_ops_amx)
            return;
    }
    if (!pairs)
        return;
    struct sigaction act = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    sigemptyset(&act.sa_mask);
    (void)sigaction(SIGILL, &act, NULL); /* each time: cmocka takes it at the begin of a test */
    g_emulated = true;
    for (uint32_t i = n + 1; i > 1; i--)
        ret_tiers[i] = ret_tiers[i - 1];
    ret_tiers[1] = &cpu_ops_amx;
}

const struct cpu_ops *__wrap_cpu_tier_find(const char *name, struct ek_fault *fault)
{
    const struct cpu_ops *have[CPU_TIERS];

    if (!name || name[0] == '\0')
        name = getenv("EVENKEEL_CPU_ISA");
    __wrap_cpu_tier_list(have);
    for (uint32_t i = 0; name && have[i]; i++)
        if (have[i] == &cpu_ops_amx && strcmp(name, "amx") == 0)
            return have[i];
    return __real_cpu_tier_find(name, fault);
}
