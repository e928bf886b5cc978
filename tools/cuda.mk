# The CUDA backend: a plug-in that links neither CUDA nor its libraries; its kernels, compiled by
# nvcc for each architecture of CUDA_ARCHS and as PTX for later ones, lie inside it. And the same
# kernels compiled for the host, under a driver for tests (tests/cuda/fake.h).
#
#   make cuda                        code for sm_80 (and with it 86, 89) and sm_90a, PTX for the rest
#   make cuda CUDA_ARCHS="$(CUDA_ALL)"   code for every card, as packages have it; slow
#   make cuda CUDA_ARCHS=90a         one card only: quick

CUDA_ALL   := 80 86 89 90a 100 120
CUDA_ARCHS ?= 80 90a
CUDA_PTX   ?= $(if $(filter 120,$(CUDA_ARCHS)),120,$(if $(filter 80,$(CUDA_ARCHS)),80,$(lastword $(CUDA_ARCHS))))
CUDA_CU    := $(wildcard kernels/cuda/*.cu)
# CUDA_IMAGES: of which of them the plug-in has images: all, but `make check` without a card has those of its day.
CUDA_IMAGES ?= $(CUDA_CU)
$(if $(strip $(CUDA_IMAGES)),,$(error CUDA_IMAGES names no kernel))
FATBINS    := $(CUDA_IMAGES:%.cu=$(B)/%.fatbin)
NVCCFLAGS  := -std=c++17 -O3 -I. --threads 2 -Xptxas -v -Werror all-warnings \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX)

# What of the rest it carries itself, so that it does not depend on what the server links.
PLUGIN_C   := $(CUDA_C) common/err.c common/clock.c kernels/graph.c kernels/mpi/wire.c kernels/quant.c kernels/quantize.c \
              kernels/shard.c kernels/shard_copy.c kernels/shard_cut.c kernels/shard_products.c kernels/shard_runs.c kernels/step.c
PLUGIN_OBJ  = $(patsubst %,$(B)/pic/%.o,$(PLUGIN_C))

cuda: $(B)/libevenkeel-cuda.so $(B)/cuda/header.checked

# The declarations of the interfaces of the driver, cuBLASLt and NCCL are those of their headers.
$(B)/cuda/header.checked: $(wildcard tests/cuda/check_*) kernels/cuda/driver.h kernels/cuda/lt.h kernels/cuda/nccl.h
	@mkdir -p $(@D)
	@$(CC) -std=gnu17 -I. -I$(CUDA_HOME)/include -fsyntax-only tests/cuda/check_header.c
	@[ ! -e $(CUDA_HOME)/include/cublasLt.h ] || $(CC) -std=gnu17 -I. -I$(CUDA_HOME)/include -fsyntax-only tests/cuda/check_lt.c
	@$(if $(HAVE_CXX),[ ! -e $(CUDA_HOME)/include/cublasLt.h ] || $(CXX) -std=gnu++17 -I. -I$(CUDA_HOME)/include -fsyntax-only tests/cuda/check_calls.cc)
	@[ ! -e $(CUDA_HOME)/include/nccl.h ] || $(CC) -std=gnu17 -I. -I$(CUDA_HOME)/include -fsyntax-only tests/cuda/check_nccl.c
	@touch $@

$(B)/%.fatbin: %.cu $(wildcard kernels/cuda/*.cuh kernels/cuda/args*.h kernels/graph.h kernels/step.h common/sampling.h) tools/cuda.mk
	@mkdir -p $(@D)
	$(SAY) "  NVCC    $<"
	@$(NVCC) $(NVCCFLAGS) --fatbin -o $@ $< >$@.log 2>&1 || { cat $@.log >&2; rm -f $@; exit 1; }

$(B)/pic/%.c.o: %.c Makefile
	@mkdir -p $(@D)
	$(SAY) "  CC      $< (plug-in)"
	@$(CC) $(ALL_C) $(CHECKED) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

# The images as data of one object, and the table that names them.
# The file `images` says which there are, so that another choice makes it again.
$(B)/cuda/images: FORCE
	@mkdir -p $(@D)
	@echo "$(CUDA_IMAGES)" | cmp -s - $@ || echo "$(CUDA_IMAGES)" >$@
$(B)/cuda/images.c: $(B)/cuda/images $(FATBINS)
	@{ echo '#include "kernels/cuda/kernels.h"'; \
	  for f in $(notdir $(FATBINS:.fatbin=)); do \
	    printf '__asm__(".section .rodata; .balign 64; ek_image_%s: ' $$f; \
	    printf '.incbin \\"%s\\"; .previous");\n' $(abspath $(B))/kernels/cuda/$$f.fatbin; \
	    echo "extern const char ek_image_$$f[] __attribute__((visibility(\"hidden\")));"; \
	  done; \
	  echo 'const struct cuda_image cuda_images[] = {'; \
	  for f in $(notdir $(FATBINS:.fatbin=)); do echo "    {ek_image_$$f, \"$$f\"},"; done; \
	  echo '    {NULL, NULL}};'; } >$@
$(B)/cuda/images.o: $(B)/cuda/images.c
	@$(CC) $(ALL_C) -fPIC -fvisibility=hidden -c -o $@ $<

$(B)/libevenkeel-cuda.so: $(PLUGIN_OBJ) $(B)/cuda/images.o
	$(SAY) "  LINK    $@"
	@$(CC) -shared -o $@ $^ $(ALL_LD) -Wl,-soname,libevenkeel-cuda.so -lxxhash -ldl -lm

# Registers, stack and spills of each kernel against tests/cuda/ptxas.txt, what a card would refuse to
# launch (tools/kernels.py), and what is to run beside products (tools/sass.py): of what was built,
# which costs nothing, or the first (ptxas-all, a minute or two) compiled for every architecture.
SOME = $(if $(filter-out $(CUDA_IMAGES),$(CUDA_CU)),--some)
check-ptxas: $(if $(filter 1,$(CUDA)),$(FATBINS) build/venv-sass/ready $(if $(HAVE_CXX),$(B)/tests/cuda/libfake-cuda.so))
	@$(if $(filter 1,$(CUDA)),python3 tools/kernels.py $(SOME) $(if $(HAVE_CXX),$(B)/tests/cuda/libfake-cuda.so,-) $(FATBINS))
	@$(if $(filter 1,$(CUDA)),CUDA_HOME=$(CUDA_HOME) python3 tools/ptxas.py $(SOME) $(FATBINS:%=%.log),echo "skipped: no CUDA toolkit to compile kernels")
	@$(if $(filter 1,$(CUDA)),CUDA_HOME=$(CUDA_HOME) python3 tools/sass.py $(FATBINS))
# A disassembler for a toolkit without one; without a network the part that needs it is skipped.
build/venv-sass/ready:
	@mkdir -p $(@D)
	@[ -x $(CUDA_HOME)/bin/nvdisasm ] || { echo "  VENV    build/venv-sass"; tools/venv.sh build/venv-sass nvidia-cuda-nvdisasm==13.5.37; } || \
	  echo "no disassembler: pip could not install nvidia-cuda-nvdisasm"
	@touch $@
ptxas-all:
	@CUDA_HOME=$(CUDA_HOME) python3 tools/ptxas.py --all $(if $(WRITE),--write)
.PHONY: check-ptxas ptxas-all

# ---- without a card ----

SHIM_CXX = $(CXX) -std=gnu++17 -I. -D_GNU_SOURCE $(or $(CHECKED),-O2 -g1) -Wall -Wextra -Werror -Wno-unknown-pragmas -fPIC \
           $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
SHIM_CC  := tests/cuda/shim.cc tests/cuda/shim_wgmma.cc tests/cuda/wgmma_wrong.cc
SHIM_OBJ := $(CUDA_CU:%.cu=$(B)/shim/%.o) $(SHIM_CC:%.cc=$(B)/shim/%.o)

$(B)/shim/kernels/cuda/%.o: kernels/cuda/%.cu tests/cuda/shim.h tests/cuda/shim_wgmma.h
	@mkdir -p $(@D)
	$(SAY) "  SHIM    $<"
	@$(SHIM_CXX) -DEK_SHIM -include tests/cuda/shim.h -MMD -MP -x c++ -c -o $@ $<
$(B)/shim/tests/cuda/%.o: tests/cuda/%.cc
	@mkdir -p $(@D)
	@$(SHIM_CXX) -DEK_SHIM -MMD -MP -c -o $@ $<

FAKE_C := $(wildcard tests/cuda/fake*.c)
$(B)/tests/cuda/libfake-cuda.so: $(SHIM_OBJ) $(FAKE_C:%=$(B)/pic/%.o) $(B)/pic/common/clock.c.o
	@mkdir -p $(@D)
	@$(CXX) -shared -o $@ $^ $(ALL_LD) -lm

# The same kernels with a call before each access of memory, and what these calls find: races.
RACES_CXX = $(CXX) -std=gnu++17 -I. -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-tsan -fPIC -DEK_RACES
RACES_CU  := $(CUDA_CU) tests/cuda/wrong.cu
RACES_CC  := tests/cuda/shim.cc tests/cuda/shim_wgmma.cc $(wildcard tests/cuda/races*.cc)
RACES_OBJ := $(RACES_CU:%.cu=$(B)/races/%.o) $(RACES_CC:%.cc=$(B)/races/%.o)

$(RACES_CU:%.cu=$(B)/races/%.o): $(B)/races/%.o: %.cu tests/cuda/shim.h
	@mkdir -p $(@D)
	$(SAY) "  RACES   $<"
	@$(RACES_CXX) -fsanitize=thread,alignment,bounds -DEK_SHIM -include tests/cuda/shim.h -MMD -MP -x c++ -c -o $@ $<
$(RACES_CC:%.cc=$(B)/races/%.o): $(B)/races/%.o: %.cc
	@mkdir -p $(@D)
	@$(RACES_CXX) -O2 -MMD -MP -c -o $@ $<
$(B)/tests/cuda/libfake-cuda-races.so: $(RACES_OBJ) $(FAKE_C:%=$(B)/pic/%.o) $(B)/pic/common/clock.c.o
	@mkdir -p $(@D)
	@$(CXX) -shared -Wl,-Bsymbolic -o $@ $^ $(ALL_LD) -lm

# The plug-in for such a driver: the same code, no images.
$(B)/tests/cuda/libevenkeel-cuda.so: $(PLUGIN_OBJ) $(B)/pic/tests/cuda/images.c.o
	@mkdir -p $(@D)
	@$(CC) -shared -o $@ $^ $(ALL_LD) -lxxhash -ldl -lm

# For end-to-end tests: the plug-in and the driver.
cuda-fake: $(if $(HAVE_CXX),$(B)/tests/cuda/libfake-cuda.so $(B)/tests/cuda/libevenkeel-cuda.so $(B)/evenkeel-bench-cuda)

CUDA_TESTS = $(filter $(B)/tests/unit/cuda/%,$(UNIT_BINS))
check-cuda-shim: $(if $(HAVE_CXX),$(CUDA_TESTS))
	@$(if $(HAVE_CXX),tools/run-tests.sh $(CUDA_TESTS),echo "skipped: no C++ compiler to run kernels on the host")
# All of these tests with their kernels under the race checker; `make check` has tests/unit/cuda/test_races.c
# of it on one day in four.
check-cuda-races: $(if $(HAVE_CXX),$(CUDA_TESTS) $(B)/tests/cuda/libfake-cuda-races.so)
	@$(if $(HAVE_CXX),SHIM_RACES=1 tools/run-tests.sh $(CUDA_TESTS),echo "skipped: no C++ compiler to run kernels on the host")
.PHONY: cuda cuda-fake check-cuda-shim check-cuda-races

# ---- with a card: tools/gpu_run.py has the sections ----

$(B)/evenkeel-bench-cuda: $(call obj,tests/bench/bench_cuda.c tests/bench/bench_cuda_model.c tests/bench/report.c) $(AR_kernels)
	$(CC) -rdynamic -o $@ $^ $(ALL_LD) $(LIBS_SERVER) -lm -ldl
check-gpu: all cuda $(B)/evenkeel-bench-cuda $(CUDA_TESTS)
	@B=$(B) tools/gpu-check.sh $(SECTIONS)
# The same for a machine on which nothing can be built: a folder with all that it needs.
gpu-bundle: all cuda $(B)/evenkeel-bench-cuda $(CUDA_TESTS)
	@tools/gpu-bundle.sh $(B) $(BUILD)/gpu-bundle $(CUDA_TESTS)
.PHONY: check-gpu gpu-bundle
