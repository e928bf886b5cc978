"""What the companion's scheduler part costs a step, on FAKES of vLLM's classes that do next to nothing: the processor time of schedule() and
update_from_output() with it less that without it, with running and waiting requests as given. Of interest is the least of several rounds,
for other programs only add. Throughput of a real vLLM with and without it is not measured here.    make bench-companion"""
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor/companion"), str(ROOT / "tests/companion")]
import vllm_stub  # noqa: E402
from evenkeel_vllm import board, scheduler  # noqa: E402

STEPS, ROUNDS = 300, 7


def per_step(s, running, waiting):
    s.max_num_active_reqs = running
    for i in range(running + waiting):
        s.add_request(vllm_stub.Request(f"cmpl-ek{i:016x}-0"))
    best = 1e9
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(STEPS):
            s.update_from_output(s.schedule(), None)
        best = min(best, (time.process_time() - begin) / STEPS)
    return best * 1e6


def main():
    vllm_stub.install()
    with tempfile.TemporaryDirectory() as where:
        os.environ["EVENKEEL_COMPANION_DIR"] = where
        limits = board.make(where, "limits")
        for cell, value in (("batched_tokens", 2048), ("deadline_s", 60)):
            limits.set(cell, value)
        print("| running | waiting | us a step |\n|---|---|---|")
        for running, waiting in ((1, 0), (64, 0), (256, 0), (256, 64), (256, 1000)):
            limits.set("running_seqs", running)
            plain = per_step(vllm_stub.AsyncScheduler(vllm_config=vllm_stub.config()), running, waiting)
            kept = scheduler.build(vllm_config=vllm_stub.config())
            kept._keel.ceiling_seqs = running
            kept._keel.limit_board()
            cost = per_step(kept, running, waiting) - plain
            assert not kept._keel.failed
            print(f"| {running} | {waiting} | {cost:.1f} |")


main()
