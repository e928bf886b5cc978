#!/usr/bin/env python3
"""make bench-quality: what each --quantization, and a KV cache in 8 bits, costs in quality, beside the same model in bfloat16.

Perplexity of a held-out text, the share of positions where the most likely token is the same, and the mean divergence from bfloat16; and the
bytes of weights by the memory plan. The embedded model also in two formats of llama.cpp (peer_formats.py), beside which int8 and int4 stand. MODEL=DIR and HELDOUT=FILE take another model and text (paragraphs, or lines of JSON with "text" or
"messages"), DOCUMENTS=n the first of them. Writes build/reports/bench-quality.json."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from quality import ROOT, TEXT, Server, compare, documents, scores, tokens_of  # noqa: E402

PEERS = {"int8": "q8_0", "int4": "q4_0"}
BINARY = ROOT / os.environ.get("B", "build/release") / "evenkeel-server"
FORMS = [("bf16", []), ("f32", ["--dtype", "float32"]), ("int8", ["--quantization", "int8"]), ("fp8", ["--quantization", "fp8"]),
         ("int4", ["--quantization", "int4"]), ("kv", ["--kv-cache-dtype", "int8_per_token_head"])]
# Of the embedded model with its text: most that the divergence may be, and the perplexity's growth in percent. The tests hold them too.
GOALS = {"int8": (0.0009, 0.5), "fp8": (0.008, 1.0), "int4": (0.05, 3.0), "kv": (0.0008, 0.3)}


def plan_of(model, flags):
    out = subprocess.run([BINARY, "--model", model, "--dry-run", "--json", *flags], capture_output=True, text=True, check=True).stdout
    return json.loads(out[out.index("{"):])


def weight_bytes(model, flags):
    return plan_of(model, flags)["bytes"]["weights"]


def measure(model, text, most):
    """{form: figures}; the prompts are the first form's tokens for all."""
    results, reference, prompts = {}, None, None
    for form, flags in FORMS:
        flags = (flags if form == "f32" else ["--dtype", "bfloat16", *flags]) + ["--max-logprobs", "20"]
        with Server(BINARY, model, *flags) as server:
            prompts = prompts or [t for t in (tokens_of(server, d) for d in documents(text, most)) if len(t) > 1]
            found = scores(server, prompts)
        reference = reference or found
        results[form] = {**compare(reference, found), "bytes": weight_bytes(model, flags), "tokens": len(found)}
    return results, reference, prompts


def peers(model, reference, prompts):
    from peer_formats import Llama
    return {form: compare(reference, Llama(model, form).scores(prompts)) for form in PEERS.values()}


def against(beside, form, kl):
    peer = PEERS.get(form)
    return {"peer": peer, "peer_value": beside[peer]["kl"], "ratio": kl / beside[peer]["kl"]} if peer in beside else {}


def main():
    tiny = ROOT / "models/evenkeel-tiny"
    model, text = pathlib.Path(os.environ.get("MODEL") or tiny), pathlib.Path(os.environ.get("HELDOUT") or TEXT)
    own = model.resolve() == tiny.resolve() and text.resolve() == TEXT.resolve()
    most = int(os.environ["DOCUMENTS"]) if os.environ.get("DOCUMENTS") else None
    results, reference, prompts = measure(model, text, most)
    beside, rows = peers(model, reference, prompts) if own else {}, []
    base = results["bf16"]
    print(f"{model.name}: {base['tokens']} tokens of {text.name}\n{'':<6}{'weights':>12}{'perplexity':>12}{'growth':>10}{'same top':>11}{'divergence':>12}")
    for form, r in results.items():
        growth = (r["perplexity"] / base["perplexity"] - 1) * 100
        goal = GOALS.get(form) if own else None
        print(f"{form:<6}{r['bytes'] / 2**20:>8.1f} MiB{r['perplexity']:>12.4f}{growth:>8.2f} %{r['top1'] * 100:>9.2f} %{r['kl']:>12.6f}", flush=True)
        rows += [{"cell": f"perplexity.{form}", "value": r["perplexity"], "unit": "", "peer": "bf16", "peer_value": base["perplexity"],
                  "ratio": r["perplexity"] / base["perplexity"], "goal": goal and base["perplexity"] * (1 + goal[1] / 100),
                  "met": goal and growth <= goal[1]},
                 {"cell": f"same_top.{form}", "value": r["top1"] * 100, "unit": "%"},
                 {"cell": f"divergence.{form}", "value": r["kl"], "unit": "nats", "goal": goal and goal[0], "met": goal and r["kl"] <= goal[0],
                  **against(beside, form, r["kl"])},
                 {"cell": f"weights.{form}", "value": r["bytes"] / 2**20, "unit": "MiB", "peer": "bf16", "peer_value": base["bytes"] / 2**20,
                  "ratio": r["bytes"] / base["bytes"]}]
    for form, r in beside.items():
        print(f"{form:<6}{'':>12}{r['perplexity']:>12.4f}{(r['perplexity'] / base['perplexity'] - 1) * 100:>8.2f} %{r['top1'] * 100:>9.2f} %{r['kl']:>12.6f}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/bench-quality.json").write_text(json.dumps(
        {"target": "bench-quality", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": rows}, indent=1) + "\n")
    print("Written to build/reports/bench-quality.json")
    return 0 if all(r.get("met") is not False for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
