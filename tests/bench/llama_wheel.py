#!/usr/bin/env python3
"""llama.cpp as a wheel of PyPI has it (xllamacpp), without building it: one prompt of random tokens and what follows it.

usage: llama_wheel.py GGUF THREADS PROMPT OUTPUT      prints {"prefill": tokens/s, "decode": tokens/s}, by llama.cpp's own clock
"""
import json
import os
import random
import sys

import xllamacpp


def main():
    path, threads, prompt, output = sys.argv[1], *map(int, sys.argv[2:])
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel = path, prompt + output + 64, 1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    said = os.dup(1)
    os.dup2(2, 1)  # its log goes to where errors go
    server, rng = xllamacpp.Server(p), random.Random(1)
    answer = server.handle_completions({"prompt": [rng.randrange(300, 100000) for _ in range(prompt)], "n_predict": output, "temperature": 0,
                                        "ignore_eos": True, "cache_prompt": False})
    t = (answer if isinstance(answer, dict) else json.loads(answer))["timings"]
    os.write(said, json.dumps({"prefill": t["prompt_per_second"], "decode": t["predicted_per_second"]}).encode() + b"\n")


if __name__ == "__main__":
    main()
