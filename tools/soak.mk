# The equality oracle at length, the invariants of the control law, and the scheduler measured.
#
#   make soak [REQUESTS=100000] [RUNS=100000] [SEED=1] [MODEL=DIR]   -> build/reports/soak.json
soak: need $(B)/tests/unit/server/test_oracle $(B)/tests/sim/sim_control
	@mkdir -p build/reports
	@REQUESTS=$(or $(REQUESTS),100000) SEED=$(or $(SEED),1) MODEL=$(MODEL) \
	  COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) REPORT=build/reports/soak.json \
	  $(B)/tests/unit/server/test_oracle
	@$(B)/tests/sim/sim_control $(or $(RUNS),100000) $(or $(SEED),1)
.PHONY: soak

# Faults injected into real processes, with the time until requests are served again; then those that
# take long to see, as clocks that jump.
#
#   make faults [REPEAT=3] [ONLY="F13 F15"]        -> build/reports/faults.json
faults: all venv cuda-fake
	@REPEAT=$(REPEAT) ONLY="$(ONLY)" B=$(B) build/venv/bin/python tests/bench/bench_faults.py
	@$(if $(ONLY),,B=$(B) build/venv/bin/python -m pytest -q --no-header --durations=0 --durations-min=1 tests/faults)
.PHONY: faults

# Traces through the scheduler and the null backend, in virtual time; host time of one step.
#
#   make bench-sched [TRACES=DIR] [REQUESTS=n]     -> build/reports/bench-sched.json and .svg
TRACES ?= tests/fixtures/traces
SCHED_C := tests/bench/bench_sched.c tests/bench/checked.c server/bench/schedsim.c server/bench/samples.c server/bench/trace.c tests/bench/report.c \
           tests/sim/null_backend.c tests/unit/alloc.c
$(B)/bench_sched: $(call obj,$(SCHED_C)) $(AR_engine)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER) $(WRAP)

bench-sched: need $(B)/bench_sched
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) \
	  $(B)/bench_sched $(TRACES) build/reports/bench-sched.json $(REQUESTS)
	@python3 tools/report_sched.py build/reports/bench-sched.json
# Short prompts beside a long one, the same way: what they wait, and how much later the long one is.
#
#   make bench-prefill [PROMPT=131072]               -> build/reports/bench-prefill.json
PREFILL_C := tests/bench/bench_prefill.c tests/bench/checked.c server/bench/schedsim.c server/bench/samples.c server/bench/trace.c \
             tests/bench/report.c tests/sim/null_backend.c tests/unit/alloc.c
$(B)/bench_prefill: $(call obj,$(PREFILL_C)) $(AR_engine)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER) $(WRAP)

bench-prefill: need $(B)/bench_prefill
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) \
	  $(B)/bench_prefill build/reports/bench-prefill.json $(PROMPT)
.PHONY: bench-prefill
# The same on the real CPU engine: a model of the embedded one's shapes with random weights is made in build/long-model.
#
#   make bench-long [PROMPT=131072] [TOKENS=512]     -> build/reports/bench-long.json
bench-long: all venv
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) PROMPT=$(PROMPT) TOKENS=$(TOKENS) \
	  build/venv/bin/python tests/bench/bench_long.py
.PHONY: bench-long
# What the flight recorder adds to a step, in turns with an engine that has none.
#
#   make bench-recorder [REPEAT=9]                   -> build/reports/bench-recorder.json
RECORDER_C := tests/bench/bench_recorder.c tests/bench/report.c tests/sim/null_backend.c
$(B)/bench_recorder: $(call obj,$(RECORDER_C)) $(AR_engine)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)

bench-recorder: need $(B)/bench_recorder
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) \
	  $(B)/bench_recorder build/reports/bench-recorder.json $(or $(REPEAT),5)
.PHONY: bench-recorder
# One key's flood beside another key's few requests, the same way.
#
#   make bench-tenants [LOADS=12]                    -> build/reports/bench-tenants.json
TENANTS_C := $(PREFILL_C:tests/bench/bench_prefill.c=tests/bench/bench_tenants.c)
$(B)/bench_tenants: $(call obj,$(TENANTS_C)) $(AR_engine)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER) $(WRAP)

bench-tenants: need $(B)/bench_tenants
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) \
	  $(B)/bench_tenants build/reports/bench-tenants.json $(LOADS)
.PHONY: bench-tenants
docs-sched:
	@python3 tools/report_sched.py build/reports/bench-sched.json --docs docs
.PHONY: bench-sched docs-sched

# Faults drawn at random under streams whose texts are known; a failure is shrunk (docs/faults.md).
#
#   make chaos [SEED=day] [TIME=60] [JOBS=1] [ONLY="drain pin"] [AGAIN=2] [SCHEDULE=FILE]  -> build/reports/chaos.json
CHAOS := $(B)/tests/tools/paced.so $(B)/tests/chaos/fake_clock.so
$(B)/tests/chaos/fake_clock.so: tests/e2e/fake_clock.c
	@mkdir -p $(@D)
	@$(CC) -shared -fPIC -O2 -o $@ $<
chaos-need: $(CHAOS)
chaos: all venv chaos-need
	@B=$(B) SEED="$(SEED)" TIME="$(TIME)" JOBS="$(JOBS)" ONLY="$(ONLY)" SCHEDULE="$(SCHEDULE)" \
	  SHRINK="$(or $(SHRINK),180)" AGAIN="$(AGAIN)" build/venv/bin/python tests/chaos/chaos.py
.PHONY: chaos chaos-need
# An engine in a process of its own: its cost in turns with a server of one process, and its end, again and again.
#
#   make bench-apart [REPEAT=60] [KILLS=200] [MINUTES=60] [SEED=1]  -> build/reports/apart.json
#   make bench-apart MODEL=build/models/qwen2-0.5b                 -> the pauses alone, of another model
bench-apart: MODEL :=
bench-apart: all venv
	@B=$(B) MODEL="$(MODEL)" REPEAT=$(REPEAT) KILLS=$(KILLS) MINUTES=$(MINUTES) SEED=$(SEED) build/venv/bin/python tests/bench/bench_apart.py
.PHONY: bench-apart

# What a planned restart costs those whose prompts were cached.
#
#   make bench-warm [REPEAT=5] [ASKS=120] [SEED=1] [MODEL=DIR]   -> build/reports/bench-warm.json
bench-warm: all venv
	@B=$(B) REPEAT=$(REPEAT) ASKS=$(ASKS) SEED=$(SEED) MODEL=$(MODEL) build/venv/bin/python tests/bench/bench_warm.py
.PHONY: bench-warm

# A driver in front of the one that is there, whose launches fail when they are told to (tools/gpu-model.py --oom); linked against
# nothing but the name of that one.
FAILING := $(B)/tests/cuda/libfailing-cuda.so
$(FAILING): $(B)/pic/tests/cuda/failing.c.o
	@mkdir -p $(@D)
	@echo | $(CC) -shared -nostdlib -Wl,-soname,libcuda.so.1 -x c -o $(@D)/libcuda-name.so -
	@$(CC) -shared -o $@ $< $(ALL_LD) -Wl,--no-as-needed $(@D)/libcuda-name.so -ldl
check-gpu gpu-bundle cuda-fake: $(FAILING)
