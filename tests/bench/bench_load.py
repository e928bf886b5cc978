#!/usr/bin/env python3
"""make bench-load: how fast a sharded model is loaded and how much memory that takes.

Makes a random bfloat16 model of some MIB in SHARDS files in build/models, reads its files one after the other, and loads it as the server does,
in turns: from the disk (its pages dropped before; what the machine below caches is its own) and from the page cache. There reading is shown
twice, thrown away (64 KiB to 1 MiB at a time, the better counts) and into memory of its own in huge pages, as a loader needs it: most of that
is the kernel clearing pages. Goals: 80 % of reading from the disk and of reading into memory; a peak of the packed weights and one shard.
Writes build/reports/bench-load.json."""
import array
import json
import mmap
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / os.environ.get("B", "build/release") / "load_model"
HIDDEN, FFN, HEADS, KV_HEADS, DIM, VOCAB = 2048, 5632, 16, 4, 128, 16384
MIB = 1 << 20


def random_bytes(pool, rng, count):
    out = bytearray()
    while len(out) < count:
        at = rng.randrange(len(pool) // 2) * 2
        out += pool[at:at + min(count - len(out), len(pool) - at)]
    return out


def layer_shapes(i):
    p = f"model.layers.{i}."
    q, kv = HEADS * DIM, KV_HEADS * DIM
    return [(p + "input_layernorm.weight", [HIDDEN]), (p + "self_attn.q_proj.weight", [q, HIDDEN]), (p + "self_attn.k_proj.weight", [kv, HIDDEN]),
            (p + "self_attn.v_proj.weight", [kv, HIDDEN]), (p + "self_attn.o_proj.weight", [HIDDEN, q]), (p + "post_attention_layernorm.weight", [HIDDEN]),
            (p + "mlp.gate_proj.weight", [FFN, HIDDEN]), (p + "mlp.up_proj.weight", [FFN, HIDDEN]), (p + "mlp.down_proj.weight", [HIDDEN, FFN])]


def size_of(shape):
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_shard(path, shapes, pool, rng):
    header, at = {}, 0
    for name, shape in shapes:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
        at += size_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes:
            f.write(random_bytes(pool, rng, size_of(shape)))
        f.flush()
        os.fsync(f.fileno())


def make_model(mib, shards):
    path = ROOT / f"build/models/load-{mib}-{shards}"
    if (path / "config.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    floats = array.array("f", (rng.gauss(0, 0.02) for _ in range(1 << 18)))
    pool = b"".join(struct.pack("<H", w >> 16) for w in array.array("I", floats.tobytes()))
    ends = [("model.embed_tokens.weight", [VOCAB, HIDDEN]), ("model.norm.weight", [HIDDEN]), ("lm_head.weight", [VOCAB, HIDDEN])]
    one, rest = sum(size_of(s) for _, s in layer_shapes(0)), sum(size_of(s) for _, s in ends)
    layers = max(1, (mib * MIB - rest) // one)
    shapes = ends[:1] + [s for i in range(layers) for s in layer_shapes(i)] + ends[1:]
    total, files, index, done = sum(size_of(s) for _, s in shapes), [[] for _ in range(shards)], {}, 0
    for name, shape in shapes:
        number = min(shards - 1, done * shards // total)
        files[number].append((name, shape))
        index[name] = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        done += size_of(shape)
    for number, part in enumerate(files):
        write_shard(path / f"model-{number + 1:05d}-of-{shards:05d}.safetensors", part, pool, rng)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (path / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": layers,
         "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM, "vocab_size": VOCAB, "max_position_embeddings": 2048,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu"}))
    return path


def drop(files):
    for file in files:
        with open(file, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_seconds(files, piece):
    buffer, begin = bytearray(piece), time.monotonic()
    for file in files:
        with open(file, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass
    return time.monotonic() - begin


def keep_seconds(files):
    """Reads into memory that was not there before."""
    begin = time.monotonic()
    for file in files:
        with open(file, "rb", buffering=0) as f, mmap.mmap(-1, os.fstat(f.fileno()).st_size) as m:
            m.madvise(mmap.MADV_HUGEPAGE)
            with memoryview(m) as view:
                at = 0
                while at < len(view):
                    at += f.readinto(view[at:at + MIB])
    return time.monotonic() - begin


def load(path, form):
    return json.loads(subprocess.run([TOOL, path, form], capture_output=True, text=True, check=True).stdout)


def measure(path, files, repeat):
    """Readings and loads in turns: {(what, cold): [seconds]}, and the last load of each form."""
    times, loads = {}, {}
    for cold in (False, True):
        if not cold:
            read_seconds(files, MIB)
        for _ in range(repeat):
            for piece in (64 << 10, MIB):
                if cold:
                    drop(files)
                times.setdefault(("read", piece, cold), []).append(read_seconds(files, piece))
                if not cold:
                    times.setdefault(("keep", 0, cold), []).append(keep_seconds(files))
                if cold:
                    drop(files)
                loads["auto"] = load(path, "auto")
                times.setdefault(("auto", 0, cold), []).append(loads["auto"]["seconds"])
        for form in () if cold else ("int8", "fp8", "int4"):
            loads[form] = load(path, form)
            times[form, 0, cold] = [loads[form]["seconds"]]
    return times, loads


def main():
    mib, shards, repeat = int(os.environ.get("MIB", "1536")), int(os.environ.get("SHARDS", "4")), int(os.environ.get("REPEAT") or 5)
    path = make_model(mib, shards)
    files = sorted(path.glob("*.safetensors"))
    total, largest = sum(f.stat().st_size for f in files), max(f.stat().st_size for f in files)
    times, loads = measure(path, files, repeat)
    rows = []
    print(f"{total / MIB:.0f} MiB in {shards} files, {repeat} times")
    for cold in (False, True):
        where = "disk" if cold else "cache"
        read = max((total / statistics.median(v) / 1e9, v) for (what, _, c), v in times.items() if what == "read" and c == cold)
        rows.append({"cell": f"read.{where}", "value": read[0], "unit": "GB/s", "spread": sorted([total / max(read[1]) / 1e9, total / min(read[1]) / 1e9])})
        beside = ("reading", read[0])
        if not cold:
            v = times["keep", 0, cold]
            beside = ("reading into memory", total / statistics.median(v) / 1e9)
            rows.append({"cell": f"read_into_memory.{where}", "value": beside[1], "unit": "GB/s", "spread": [total / max(v) / 1e9, total / min(v) / 1e9]})
        for form in ("auto", "int8", "fp8", "int4"):
            if (form, 0, cold) not in times:
                continue
            v = times[form, 0, cold]
            rate = total / statistics.median(v) / 1e9
            goal = 0.8 * beside[1] if form == "auto" else None
            rows.append({"cell": f"load.{where}.{'bf16' if form == 'auto' else form}", "value": rate, "unit": "GB/s", "peer": beside[0], "peer_value": beside[1],
                         "spread": [total / max(v) / 1e9, total / min(v) / 1e9], "ratio": rate / beside[1], "goal": goal, "met": goal and rate >= goal})
    for form, r in loads.items():
        limit = r["weight_bytes"] + largest
        rows.append({"cell": f"peak.{'bf16' if form == 'auto' else form}", "value": r["peak_bytes"] / MIB, "unit": "MiB", "peer": "packed weights",
                     "peer_value": r["weight_bytes"] / MIB, "ratio": r["peak_bytes"] / r["weight_bytes"], "goal": limit / MIB, "met": r["peak_bytes"] <= limit})
    for r in rows:
        print(f"  {r['cell']:<18}{r['value']:>10.2f} {r['unit']:<5}" + (f" {r['ratio']:>7.2f} of {r['peer']}" if "ratio" in r else "")
              + ("" if r.get("met") is None else "  met" if r["met"] else "  MISSED"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/bench-load.json").write_text(json.dumps(
        {"target": "bench-load", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": rows}, indent=1) + "\n")
    return 0 if all(r.get("met") is not False for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
