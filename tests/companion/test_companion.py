"""Protects: the companion without a vLLM: limits and their sentences, the boards, what the scheduler part obeys and counts. vLLM's classes are
FAKES here (vllm_stub.py); a real vLLM is in tests/vllm/test_companion.py. Standard library alone: make check-companion"""
import os
import time
import types
import unittest

from directory import InDirectory, ROOT  # first: it makes the others known
import vllm_stub
from evenkeel_vllm import VERSION, board, front, limits, metrics, scheduler, worker


class TestVersion(unittest.TestCase):
    def test_is_the_one_of_all_others(self):
        self.assertEqual(VERSION, (ROOT / "VERSION").read_text().strip())


class TestWorkerFigures(InDirectory):
    def look(self, torch):
        worker.figures(self.to, torch)
        return [self.to.get(name) for name in ("reserved", "used", "used_high")]

    def setUp(self):
        super().setUp()
        self.to = board.make(self.dir, "worker")

    def test_outside_weights_and_cache_once_the_engine_is_built(self):
        torch = vllm_stub.Torch()
        self.assertEqual(self.look(torch.has(70, 68)), [70, 68, 68])
        board.make(self.dir, "engine")
        self.assertEqual(self.look(torch.has(74, 73)), [0, 0, 0])  # in the midst of a step
        self.assertEqual(self.look(torch.has(76, 68)), [7, 0, 5])
        self.assertEqual(self.look(torch.has(79, 70)), [10, 2, 5])
        page = metrics.page(None, {}, {}, {os.getpid(): self.to}, 'vllm="x"', 0)
        self.assertIn("evenkeel_devpool_reserved_bytes 10\n", page)
        self.assertIn('item="reserved"} 79\n', page)

    def test_pieces_are_seen_beside_a_large_cache(self):
        gib = 1 << 30
        torch = vllm_stub.Torch().has(71 * gib, 70 * gib)
        board.make(self.dir, "engine")
        self.look(torch)
        reserved, _, high = self.look(torch.has(79 * gib, 71 * gib))
        self.assertGreater(1 - high / reserved, 0.85)  # of all that it holds it would be 0.1

    def test_another_engine_says_nothing(self):
        open(board.path_of(self.dir, "engine", 1), "wb").close()
        self.assertEqual(self.look(vllm_stub.Torch().has(70, 68)), [70, 68, 68])


class TestLimits(unittest.TestCase):
    def setUp(self):
        self.l = limits.Limits({"max_num_running_seqs": limits.Row(16, 16, 16, 1), "max_num_batched_tokens": limits.Row(2048, 2048, 2048, 1),
                                "queue_deadline_s": limits.Row(0, 0, 0, 0)})

    def test_refused_as_a_whole_with_field_bound_and_remedy(self):
        for body, status, param, says in (
            ([], 400, "", "JSON object"),
            ({}, 400, "", "names no limit"),
            ({"max_num_running_seqs": 17}, 400, "max_num_running_seqs", "above its ceiling 16: lower it, or restart the server with a larger --max-num-seqs"),
            ({"max_num_running_seqs": 0}, 400, "max_num_running_seqs", "below its least value 1"),
            ({"max_num_running_seqs": 1.5}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": True}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": float("nan")}, 400, "max_num_running_seqs", "whole number"),
            ({"max_num_running_seqs": 8, "generation": 3}, 409, "generation", "read them again"),
            ({"max_num_running_seqs": 8, "max_num_batched_tokens": 4}, 400, "max_num_batched_tokens", "each running sequence needs one token"),
            ({"max_num_running_seqs": 8, "reason": "x" * 96}, 400, "reason", "shorter than 96"),
            ({"max_num_running_seqs": 8, "expires_in_s": "soon"}, 400, "expires_in_s", "number"),
            ({"watermark": 0.1}, 400, "watermark", "This vLLM cannot change"),
            ({"nonsense": 1}, 400, "nonsense", "There is no limit"),
        ):
            with self.subTest(body=body), self.assertRaises(limits.Refused) as got:
                self.l.apply(body, 1.0)
            self.assertEqual((got.exception.status, got.exception.param), (status, param))
            self.assertIn(says, str(got.exception))
            self.assertEqual((self.l.generation, self.l.rows["max_num_running_seqs"].value), (0, 16))

    def test_a_change_and_its_end(self):
        self.l.apply({"max_num_running_seqs": 4, "expires_in_s": 10, "origin": "evenkeeld", "reason": "harm"}, 100.0)
        seen = self.l.as_json(103.0)
        self.assertEqual((seen["max_num_running_seqs"], seen["generation"], seen["origin"], seen["expires_in_s"]), (4, 1, "evenkeeld", 7.0))
        self.assertEqual(seen["changed_s_ago"]["max_num_running_seqs"], 3.0)
        self.assertFalse(self.l.expire(109.9))
        self.assertTrue(self.l.expire(110.0))
        self.assertEqual((self.l.rows["max_num_running_seqs"].value, self.l.generation), (16, 2))

    def test_what_is_given_at_the_start_is_brought_inside(self):
        self.assertEqual(self.l.begin("max_num_running_seqs=99,queue_deadline_s=5,junk,x=1"), ["junk", "x=1"])
        self.assertEqual([self.l.rows[n].value for n in ("max_num_running_seqs", "queue_deadline_s")], [16, 5])


class TestScheduler(InDirectory):
    def build(self, asynchronous=True):
        s = scheduler.build(vllm_config=vllm_stub.config(asynchronous))
        self.limits = board.make(self.dir, "limits")
        return s, s._keel.board

    def step(self, s, out=None):
        out = out or s.schedule()
        s.update_from_output(out, None)
        return out

    def test_the_class_that_vllm_would_have_taken(self):
        self.assertIsInstance(self.build(True)[0], vllm_stub.AsyncScheduler)
        self.assertNotIsInstance(self.build(False)[0], vllm_stub.AsyncScheduler)

    def test_limits_are_obeyed_and_nobody_is_cut(self):
        s, b = self.build()
        for i in range(6):
            s.add_request(vllm_stub.Request(f"r{i}"))
        self.step(s)
        self.assertEqual(b.get("running"), 4)  # none has been said yet: vLLM's own
        for cell, value in (("running_seqs", 2), ("batched_tokens", 16), ("watermark", 0.051), ("prefill_chunk", 8)):
            self.limits.set(cell, value)
        s._keel.look_again = 0
        self.step(s)
        self.assertEqual((len(s.running), s.max_num_active_reqs, s.max_num_scheduled_tokens), (4, 2, 16))
        self.assertEqual((s.kv_cache_manager.watermark_blocks, s.scheduler_config.long_prefill_token_threshold), (6, 8))
        self.assertEqual((b.get("waiting"), b.get("held_limit"), b.get("waiting_tokens")), (2, 2, 16))
        s.finish_requests(["r0", "r1", "r2"], None)
        self.step(s)
        self.assertEqual(len(s.running), 2)
        self.limits.set("running_seqs", 99)  # never above what it began with
        self.step(s)
        self.assertEqual(s.max_num_active_reqs, 4)

    def test_a_long_prompt_comes_in_chunks_of_the_live_limit(self):
        s, _ = self.build()
        self.limits.set("running_seqs", 4)
        for name, prompt in (("short", 1), ("long", 100)):
            s.add_request(vllm_stub.Request(name, prompt=prompt))
        seen = []
        for chunk, steps in ((8, 3), (0, 1), (5, 2)):  # none: as much as a step has
            self.limits.set("prefill_chunk", chunk)
            seen += [self.step(s).num_scheduled_tokens["long"] for _ in range(steps)]
        self.assertEqual(seen, [8, 8, 8, 63, 5, 5])

    def test_engines_of_data_parallelism_share_sequences(self):
        for seqs, engines in ((5, 2), (16, 2), (7, 3), (3, 3)):
            self.assertEqual(sum(scheduler.share(seqs, engines, i) for i in range(engines)), seqs)
            self.assertEqual(sum(scheduler.share(seqs, engines, i) for i in range(engines, 2 * engines)), seqs)  # on another node
        self.assertEqual([scheduler.share(1, 3, i) for i in range(3)], [1, 1, 1])
        self.assertEqual((scheduler.share(5, 1, 0), scheduler.share(0, 2, 1), scheduler.share(5, 0, 0)), (5, 0, 5))
        config = vllm_stub.config()
        config.parallel_config = types.SimpleNamespace(data_parallel_index=1, data_parallel_rank=0)
        s = scheduler.build(vllm_config=config)
        limits_ = board.make(self.dir, "limits")
        for cell, value in (("running_seqs", 5), ("engines", 2)):
            limits_.set(cell, value)
        self.step(s)
        self.assertEqual(s.max_num_active_reqs, 2)

    def test_an_older_vllm_may_not_run_more_than_it_allows(self):
        vllm_stub.AsyncScheduler.slots = "max_num_running_reqs"
        self.addCleanup(setattr, vllm_stub.AsyncScheduler, "slots", "max_num_active_reqs")
        s, b = self.build()
        for i in range(4):
            s.add_request(vllm_stub.Request(f"r{i}"))
        self.limits.set("running_seqs", 4)
        self.step(s)
        self.limits.set("running_seqs", 1)
        self.step(s)
        self.assertEqual(s.max_num_running_reqs, 4)
        s.finish_requests(["r0", "r1"], None)
        self.step(s)
        self.assertEqual(s.max_num_running_reqs, 2)

    def test_counts(self):
        s, b = self.build()
        s.add_request(vllm_stub.Request("a", prompt=32, arrival=time.time() - 5))
        first = s.schedule()
        self.assertGreater(b.get("step_since"), 0)
        self.step(s, first)
        self.assertEqual((b.get("steps"), b.get("step_since")), (1, 0))
        s._preempt_request(s.requests["a"], 0.0)
        self.assertEqual(b.get("preemptions"), 1)  # when it happens
        self.assertEqual(b.get("recomputed_tokens"), 0)
        s._keel.publish()
        self.assertEqual((b.get("waiting_preempted"), b.get("oldest_new_arrival")), (1, 0))
        self.assertAlmostEqual(time.time() - b.get("oldest_arrival"), 5, delta=1)
        s.requests["a"].num_computed_tokens = 24  # found in the prefix cache
        self.step(s)
        self.assertEqual(b.get("recomputed_tokens"), 8)
        self.assertEqual(s._keel.lost, {})
        s._preempt_request(s.requests["a"], 0.0)
        s.finish_requests(["a"], None)  # its client left while it waited
        self.assertEqual((b.get("running"), b.get("waiting")), (0, 0))
        self.step(s)
        self.assertEqual(s._keel.lost, {})

    def test_who_is_overdue(self):
        s, b = self.build()
        self.limits.set("running_seqs", 1)
        self.limits.set("deadline_s", 2)
        for name, age in (("runs", 9), ("old", 5), ("new", 1)):
            s.add_request(vllm_stub.Request(name, arrival=time.time() - age))
        self.step(s)
        self.assertEqual(front.overdue(self.dir, {os.getpid(): b}), ["old"])
        s.finish_requests(["old"], None)
        s._keel.told_at = 0
        self.step(s)
        self.assertEqual(front.overdue(self.dir, {os.getpid(): b}), [])

    def test_an_error_of_ours_ends_nothing(self):
        s, b = self.build()
        self.limits.set("running_seqs", 1)
        s.add_request(vllm_stub.Request("a"))
        self.step(s)
        s._keel.pool.get_num_free_blocks = None
        self.assertEqual(self.step(s).num_scheduled_tokens, {"a": 1})
        self.assertTrue(s._keel.failed)
        self.assertEqual(s.max_num_active_reqs, 4)  # as vLLM began
        self.assertEqual(self.step(s).num_scheduled_tokens, {"a": 1})

    def test_what_is_missing_switches_it_off(self):
        finish = vllm_stub.Scheduler.finish_requests
        del vllm_stub.Scheduler.finish_requests
        self.addCleanup(setattr, vllm_stub.Scheduler, "finish_requests", finish)
        self.assertIs(type(scheduler.build(vllm_config=vllm_stub.config())), vllm_stub.AsyncScheduler)
