/*
 * The table of known cards, looked up by a name as nvidia-smi or a person writes it. `evenkeelctl
 * plan` uses the rows, and plan_gpu_page() makes the table in the documentation from them. A card
 * that is not in it can be described by flags.
 */
#include "supervisor/planner/gpus.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

static const struct plan_gpu cards[] = {
    {"a10", "NVIDIA A10", 22.1, 600, 125, 0, 32, "NVIDIA A10 data sheet"},
    {"a30", "NVIDIA A30", 23.5, 933, 165, 0, 100, "NVIDIA A30 data sheet"},
    {"a40", "NVIDIA A40", 44.4, 696, 149.7, 0, 56, "NVIDIA A40 data sheet"},
    {"a100-40", "NVIDIA A100 40 GB", 39.4, 1555, 312, 0, 300, "NVIDIA A100 data sheet"},
    {"a100-80", "NVIDIA A100 80 GB", 79.15, 2039, 312, 0, 300, "NVIDIA A100 data sheet"},
    {"a6000", "NVIDIA RTX A6000", 47.5, 768, 154.8, 0, 56, "NVIDIA RTX A6000 data sheet"},
    {"a800", "NVIDIA A800 80 GB", 79.15, 2039, 312, 0, 200, "NVIDIA A800 data sheet"},
    {"b200", "NVIDIA B200", 178.4, 8000, 2250, 4500, 900, "NVIDIA DGX B200 data sheet"},
    {"gh200", "NVIDIA GH200 96 GB", 94.5, 4000, 989, 1979, 450, "NVIDIA GH200 data sheet"},
    {"h100", "NVIDIA H100 SXM 80 GB", 79.15, 3350, 989, 1979, 450, "NVIDIA H100 data sheet"},
    {"h100-pcie", "NVIDIA H100 PCIe 80 GB", 79.15, 2000, 756, 1513, 64, "NVIDIA H100 data sheet"},
    {"h20", "NVIDIA H20 96 GB", 95.1, 4000, 148, 296, 450, "NVIDIA H20 data sheet"},
    {"h200", "NVIDIA H200 141 GB", 139.8, 4800, 989, 1979, 450, "NVIDIA H200 data sheet"},
    {"h800", "NVIDIA H800 SXM 80 GB", 79.15, 3350, 989, 1979, 200, "NVIDIA H800 data sheet"},
    {"l20", "NVIDIA L20", 44.4, 864, 119.5, 239, 32, "NVIDIA L20 data sheet"},
    {"l4", "NVIDIA L4", 22.1, 300, 121, 242, 32, "NVIDIA L4 data sheet"},
    {"l40s", "NVIDIA L40S", 44.4, 864, 362, 733, 32, "NVIDIA L40S data sheet"},
    {"mi300x", "AMD Instinct MI300X", 191.5, 5300, 1307, 2615, 64, "AMD MI300X data sheet"},
    {"rtx3090", "NVIDIA RTX 3090", 23.6, 936, 71, 0, 16, "NVIDIA Ampere GA102 white paper"},
    {"rtx4090", "NVIDIA RTX 4090", 23.6, 1008, 165, 330, 32, "NVIDIA Ada white paper"},
    {"rtx5090", "NVIDIA RTX 5090", 31.4, 1792, 210, 419, 64, "NVIDIA Blackwell RTX white paper"},
    {"t4", "NVIDIA T4", 14.6, 320, 65, 0, 16, "NVIDIA T4 data sheet"},
    {"v100-32", "NVIDIA V100 32 GB", 31.7, 900, 125, 0, 150, "NVIDIA V100 data sheet"},
};
#define CARDS (sizeof(cards) / sizeof(cards[0]))

static const char *gpus_skip(const char *s)
{
    while (*s == ' ' || *s == '-' || *s == '_')
        s++;
    return s;
}

static bool gpus_same(const char *a, const char *b)
{
    for (;;) {
        a = gpus_skip(a);
        b = gpus_skip(b);
        if (tolower((unsigned char)*a) != *b)
            return false;
        if (!*a)
            return true;
        a++;
        b++;
    }
}

const struct plan_gpu *plan_gpu_find(const char *name)
{
    for (size_t i = 0; i < CARDS; i++) {
        if (gpus_same(name, cards[i].name))
            return &cards[i];
    }
    if (gpus_same(name, "a800-80"))
        return plan_gpu_find("a800");
    return gpus_same(name, "a100") ? plan_gpu_find("a100-80") : NULL;
}

struct plan_device plan_gpu_speed(const struct plan_gpu *g)
{
    if (!g)
        return (struct plan_device){.read_bytes_s = 20e9, .flops = 0.2e12, .own = true};
    return (struct plan_device){.read_bytes_s = g->read_gbs * 1e9,
                                .flops = g->bf16_tflops * 1e12,
                                .flops8 = g->f8_tflops * 1e12,
                                .link_bytes_s = g->link_gbs * 1e9};
}

const struct plan_gpu *plan_gpu_at(uint32_t i)
{
    return i < CARDS ? &cards[i] : NULL;
}

void plan_gpu_names(struct ek_buf *out)
{
    for (size_t i = 0; i < CARDS; i++)
        (void)ek_buf_printf(out, "%s%s", i ? ", " : "", cards[i].name);
}

void plan_gpu_page(struct ek_buf *out)
{
    (void)ek_buf_puts(out,
                      "| `--gpu` | memory GiB | GB/s | bf16 TFLOP/s | fp8 TFLOP/s | link GB/s |\n"
                      "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < CARDS; i++) {
        const struct plan_gpu *g = &cards[i];
        (void)ek_buf_printf(out, "| `%s` | %.1f | %.0f | %.0f | ", g->name, g->memory_gib,
                            g->read_gbs, g->bf16_tflops);
        if (g->f8_tflops > 0)
            (void)ek_buf_printf(out, "%.0f", g->f8_tflops);
        (void)ek_buf_printf(out, " | %.0f |\n", g->link_gbs);
    }
}
