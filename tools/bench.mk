# Benchmarks of the engine: tokens/s beside what the machine can read and compute.
#
#   make bench [MODEL=DIR] [REPEAT=n] [DTYPE=float32]     -> build/reports/bench.json, bench-kernels.json
MODEL  ?= models/evenkeel-tiny
REPEAT ?= 5
DTYPE  ?= bfloat16

bench: need $(B)/evenkeel-bench
	@mkdir -p build/reports
	@$(B)/evenkeel-bench engine --model "$(MODEL)" --repeat "$(REPEAT)" --dtype "$(DTYPE)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)" --report build/reports/bench.json
	@$(B)/evenkeel-bench kernels --repeat "$(REPEAT)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)" --report build/reports/bench-kernels.json
	@echo "Written to build/reports/bench.json and bench-kernels.json"

# Constrained output: compiling schemas, masks for a vocabulary of 128k tokens.
#
#   make bench-grammar [TEXTS=n]                          -> build/reports/bench-grammar.json
$(B)/bench_grammar: $(call obj,tests/bench/bench_grammar.c tests/bench/report.c) $(AR_grammar)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)

bench: bench-grammar
bench-grammar: need $(B)/bench_grammar
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) \
	  $(B)/bench_grammar models/evenkeel-tiny build/reports/bench-grammar.json $(or $(TEXTS),40)
.PHONY: bench-grammar

# Text to tokens on real vocabularies, beside Hugging Face's tokenizers in the same run; opt-in as
# check-tokenizers, whose environment it uses.
#
#   make bench-tokenizer [REPEAT=n]                       -> build/reports/bench-tokenizer.json
$(B)/bench_tokenizer: $(call obj,tests/bench/bench_tokenizer.c) $(AR_text)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)

bench-tokenizer: need $(B)/bench_tokenizer build/tokenizers-venv/ready
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) build/tokenizers-venv/bin/python \
	  tools/bench-tokenizer.py $(B)/bench_tokenizer build/reports/bench-tokenizer.json $(REPEAT)
.PHONY: bench-tokenizer

# What --quantization costs in quality: perplexity, agreement and divergence against bfloat16.
#
#   make bench-quality [MODEL=DIR HELDOUT=FILE DOCUMENTS=n]  -> build/reports/bench-quality.json
bench-quality: all
	@B=$(B) MODEL="$(MODEL)" HELDOUT="$(HELDOUT)" DOCUMENTS="$(DOCUMENTS)" \
	  python3 tests/bench/bench_quality.py
.PHONY: bench-quality

# How fast a sharded model is loaded, beside reading its files, and how much memory that takes.
#
#   make bench-load [MIB=1536 SHARDS=4 REPEAT=n]          -> build/reports/bench-load.json
MIB    ?= 1536
SHARDS ?= 4
$(B)/load_model: $(call obj,tests/bench/load_model.c) $(AR_model)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)
bench-load: need $(B)/load_model
	@B=$(B) MIB=$(MIB) SHARDS=$(SHARDS) REPEAT=$(REPEAT) python3 tests/bench/bench_load.py
.PHONY: bench-load
