# Benchmarks of the engine: tokens/s beside what the machine can read and compute.
#
#   make bench [MODEL=DIR] [REPEAT=n] [DTYPE=float32]     -> build/reports/bench.json
MODEL  ?= models/evenkeel-tiny
REPEAT ?= 5
DTYPE  ?= bfloat16

BENCH_C := tests/bench/bench_engine.c tests/bench/machine.c
$(B)/evenkeel-bench: $(call obj,$(BENCH_C)) $(AR_model)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)

bench: need $(B)/evenkeel-bench
	@mkdir -p build/reports
	@$(B)/evenkeel-bench --model "$(MODEL)" --repeat "$(REPEAT)" --dtype "$(DTYPE)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)" --report build/reports/bench.json
	@echo "Written to build/reports/bench.json"
