"""FAKES of the few classes of vLLM that the companion's scheduler part touches, with the same names and the same order of events as vLLM
0.32's. They show what the companion does with them; that a real vLLM is like this is proved by tests/vllm/test_companion.py alone."""
import sys
import time
import types


class Request:
    def __init__(self, name, prompt=8, arrival=None):
        self.request_id, self.num_prompt_tokens = name, prompt
        self.arrival_time = time.time() if arrival is None else arrival
        self.num_preemptions = self.num_computed_tokens = 0


class Pool:
    def __init__(self, blocks):
        self.num_gpu_blocks, self.free = blocks, blocks - 1
        self.cached_block_hash_to_block = {}

    def get_num_free_blocks(self):
        return self.free


class Output:
    def __init__(self, tokens):
        self.num_scheduled_tokens = tokens
        self.total_num_scheduled_tokens = sum(tokens.values())


class Scheduler:
    """Admits in the order of arrival up to its limit. A prompt is computed in chunks of at most `long_prefill_token_threshold` when there are
    others, as in vLLM 0.32, and of what is left of the step's tokens."""

    slots = "max_num_active_reqs"

    def __init__(self, vllm_config=None, blocks=101):
        self.vllm_config, self.scheduler_config = vllm_config, vllm_config.scheduler_config
        setattr(self, self.slots, 4)
        self.max_num_scheduled_tokens = 64
        self.kv_cache_manager = types.SimpleNamespace(block_pool=Pool(blocks), watermark_blocks=0)
        self.running, self.waiting, self.requests = [], [], {}

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self, throttle_prefills=False):
        while self.waiting and len(self.running) < getattr(self, self.slots):
            self.running.append(self.waiting.pop(0))
        tokens, left = {}, self.max_num_scheduled_tokens
        chunk = self.scheduler_config.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        for r in self.running:
            new = max(1, r.num_prompt_tokens - r.num_computed_tokens)
            new = min(new, left, chunk or new)
            if new:
                tokens[r.request_id] = new
            left -= new
            r.num_computed_tokens += new
        return Output(tokens)

    def update_from_output(self, scheduler_output, model_runner_output):
        return {}

    def finish_requests(self, names, status):
        for name in names:
            r = self.requests.pop(name)
            (self.running if r in self.running else self.waiting).remove(r)
        return []

    def _preempt_request(self, request, timestamp, drop_stale_output=False):
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.running.remove(request)
        self.waiting.insert(0, request)


class AsyncScheduler(Scheduler):
    pass


def config(asynchronous=True):
    return types.SimpleNamespace(scheduler_config=types.SimpleNamespace(async_scheduling=asynchronous, long_prefill_token_threshold=0))


def install():
    """As `vllm.v1.core.sched` in sys.modules."""
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        sys.modules[name] = types.ModuleType(name)
    for name, cls in (("scheduler", Scheduler), ("async_scheduler", AsyncScheduler)):
        module = types.ModuleType(f"vllm.v1.core.sched.{name}")
        setattr(module, cls.__name__, cls)
        sys.modules[module.__name__] = module


class Torch:
    """Of one device, with PyTorch's keys: a FAKE; the real allocator is in tools/gpu-companion.py."""

    def __init__(self):
        self.cuda, self.peak = self, 0

    def is_available(self):
        return True

    is_initialized = is_available

    def device_count(self):
        return 1

    def memory_stats(self, _):
        return {"reserved_bytes.all.current": self.reserved, "allocated_bytes.all.current": self.used, "allocated_bytes.all.peak": self.peak}

    def has(self, reserved, used):
        self.reserved, self.used, self.peak = reserved, used, max(self.peak, used)
        return self
