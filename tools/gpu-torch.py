#!/usr/bin/env python3
"""What PyTorch reaches on this card, beside which ours is read: a copy, products of 64, 256 and 2048 rows with an 8B model's largest matrix,
attention to 8,192 tokens. usage: gpu-torch.py REPORT.json"""
import json
import sys

import torch

ROWS, INNER, HIDDEN, TOKENS, HEADS, KV_HEADS, DIM = (64, 256, 2048), 14336, 4096, 8192, 32, 8, 128


def seconds(work, times=20):
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def main():
    found = []

    def cell(name, value, unit):
        found.append({"cell": f"torch.{name}", "value": value, "unit": unit})
        print(f"  torch.{name} {value:.1f} {unit}", flush=True)

    half = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.randn(1 << 29, **half)
    b = torch.empty_like(a)
    cell("copy", 2 * a.nbytes / seconds(lambda: b.copy_(a)) / 1e9, "GB/s")
    del a, b
    w = torch.randn(2 * INNER, HIDDEN, **half)
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, **half)
        cell(f"matmul.{rows}", 2 * rows * w.numel() / seconds(lambda: torch.nn.functional.linear(x, w)) / 1e12, "TFLOP/s")
    q = torch.randn(1, HEADS, TOKENS, DIM, **half)
    k, v = (torch.randn(1, HEADS, TOKENS, DIM, **half) for _ in range(2))
    took = seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), 10)
    cell("attention.8192", 4 * HEADS * DIM * TOKENS * TOKENS / 2 / took / 1e12, "TFLOP/s")
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump({"target": "torch", "machine": {"torch": torch.__version__}, "rows": found}, f)


main()
