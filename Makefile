# Evenkeel: one Makefile, no recursion, objects under build/<variant>/.
#
#   make              all programs               make CUDA=0                  CPU backend only
#   make test         offline, <= 4 minutes      make SAN=address,undefined test
#   make check        all of it, half an hour   make SAN=thread test
#   make demo         the model under load       make bench                   tokens/s and limits
#   make lint         format, tidy, scripts      make install DESTDIR= PREFIX=/usr
#   make chaos        faults at random (SEED= TIME=)
#
#   make dist         the source archive         make deb rpm                  packages into build/
#   make check-packages   install, use, upgrade and remove them in machines of their own
#
# Variables: CC CPPFLAGS CFLAGS LDFLAGS SAN PART TIERS OWN_TIERS OMIT MPI CUDA CUDA_HOME CUDA_ARCHS BUILD (default build)
# VERBOSE DESTDIR PREFIX.
MAKEFLAGS += -r
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
.DEFAULT_GOAL := all

SAN   ?=
CUDA_HOME ?= /usr/local/cuda
HAVE_CXX := $(shell command -v $(CXX) 2>/dev/null)
CUDA  ?= $(if $(HAVE_CXX),$(if $(wildcard $(CUDA_HOME)/bin/nvcc),1,0),0)
NVCC  ?= $(CUDA_HOME)/bin/nvcc
CC    := $(if $(filter default,$(origin CC)),gcc,$(CC))
BUILD ?= build
PREFIX ?= /usr/local
comma := ,
Q := $(if $(VERBOSE),,@)
SAY := @$(if $(VERBOSE),:,echo)
VERBOSE ?= $(V)
VARIANT := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)$(PART:%=-%)
B := $(BUILD)/$(VARIANT)
VERSION := $(shell cat VERSION)

WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
        -Wwrite-strings -Wformat=2 -Wundef -Wvla -Wdouble-promotion -Wcast-qual \
        -Wnull-dereference -Wimplicit-fallthrough
# For clang NAN and INFINITY are floats that are promoted.
WARN += $(if $(findstring clang,$(CC)),-Wno-double-promotion)
CFLAGS ?= -O2 -g
ALL_C  = -std=gnu17 -I. -D_GNU_SOURCE -DEK_VERSION='"$(VERSION)"' -fno-common \
         -fno-omit-frame-pointer $(WARN) $(CPPFLAGS) $(CFLAGS) $(PKG_CFLAGS) \
         $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -DEK_CHECK=1)
ALL_LD = -Wl,--build-id=sha1 $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN)) -pthread

# What each part needs: pkg-config name, looked up once; tools/deps.sh installs them.
PKGS_COMMON := libsystemd yaml-0.1
PKGS_SERVER := $(PKGS_COMMON) libmicrohttpd jansson libpcre2-8 libutf8proc libxxhash zlib gnutls libzmq
# Only its headers are used: nothing is linked.
PKGS_HEADERS := msgpack
PKGS_SUPER  := $(PKGS_COMMON) libcurl jansson libmicrohttpd libpcre2-8 zlib
PKGS_ALL    := $(sort $(PKGS_SERVER) $(PKGS_HEADERS) $(PKGS_SUPER))
NEEDS_BUILD := $(filter-out clean layers deps help fmt install-deps,$(or $(MAKECMDGOALS),all))
ifneq ($(NEEDS_BUILD),)
MISSING := $(shell for p in $(PKGS_ALL); do pkg-config --exists $$p 2>/dev/null || echo $$p; done)
endif
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS_ALL) 2>/dev/null)
# Several machines: a module over Open MPI, built where that is (libopenmpi-dev).
MPI ?= $(shell pkg-config --exists ompi-c 2>/dev/null && echo 1 || echo 0)
MPI_CFLAGS = $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c))
LIBS_SERVER = $(shell pkg-config --libs $(PKGS_SERVER)) -lm -ldl
LIBS_SUPER  = $(shell pkg-config --libs $(PKGS_SUPER)) -lm -ldl

COMMON := $(wildcard common/*.c)
KERNEL := $(filter-out kernels/mpi/module.c,$(wildcard kernels/*.c kernels/mpi/*.c kernels/cpu/*.c))
CUDA_C := $(wildcard kernels/cuda/*.c)
JINJA  := $(wildcard server/text/jinja/*.c)
TEXT   := $(wildcard server/text/*.c)
GRAMMAR := $(wildcard server/grammar/*.c)
MODELS := $(wildcard server/model/*.c)
ENGINE := $(wildcard server/engine/*.c)
ANSWER := $(wildcard server/text/answer/*.c)
API    := $(wildcard server/api/*.c)
NET    := $(wildcard server/net/*.c)
TOP    := $(filter-out server/main.c,$(wildcard server/*.c))
PLANNER := $(wildcard supervisor/planner/*.c)
ENGINES := $(wildcard supervisor/engines/*.c)
DOCTOR := $(wildcard supervisor/doctor/*.c)
LAW    := $(wildcard supervisor/law/*.c)
SUPER  := $(filter-out supervisor/main.c,$(wildcard $(patsubst %,supervisor/%*.c,io/ config/ servers/ web/) supervisor/*.c))
BENCH  := $(filter-out server/bench/main.c,$(wildcard server/bench/*.c))
CTL    := $(filter-out supervisor/ctl/main.c,$(wildcard supervisor/ctl/*.c))
obj     = $(patsubst %,$(B)/%.o,$(1))

# Archives in link order, lowest last. A unit test in tests/unit/<area>/ links only what its layer
# may see, which proves the layering.
AR_common     := $(B)/common.a
AR_kernels    := $(B)/kernels.a $(AR_common)
AR_cuda       := $(B)/cuda.a $(AR_kernels)
AR_jinja      := $(B)/jinja.a $(AR_common)
AR_text       := $(B)/text.a $(AR_jinja)
AR_grammar    := $(B)/grammar.a $(AR_text)
AR_model      := $(B)/model.a $(AR_kernels)
AR_engine     := $(B)/engine.a $(B)/grammar.a $(B)/text.a $(B)/jinja.a $(AR_model)
AR_answer     := $(B)/answer.a $(AR_text)
AR_api        := $(B)/api.a $(B)/answer.a $(AR_engine)
AR_net        := $(B)/net.a $(AR_api)
AR_server     := $(B)/server.a $(AR_net)
AR_engines    := $(B)/engines.a $(AR_common)
AR_doctor     := $(B)/doctor.a $(AR_engines)
AR_law        := $(B)/law.a $(AR_doctor)
AR_supervisor := $(B)/supervisor.a $(AR_law)
AR_bench      := $(B)/bench.a $(AR_engine)
AR_planner    := $(B)/planner.a $(AR_common)
AR_ctl        := $(B)/ctl.a $(B)/planner.a $(AR_doctor)

PROGRAMS := evenkeel-server evenkeeld evenkeelctl evenkeel-bench evenkeel-nvml
all: need $(PROGRAMS:%=$(B)/%) $(if $(filter 1,$(CUDA)),cuda) $(if $(filter 1,$(MPI)),$(B)/libevenkeel-mpi.so)

need:
ifneq ($(MISSING),)
	@echo "Missing libraries: $(MISSING). Install them with: tools/deps.sh build" >&2; exit 1
endif
ifneq ($(CUDA),1)
	@echo "note: $(if $(wildcard $(NVCC)),CUDA=0 or no C++ compiler,no CUDA toolkit at $(CUDA_HOME)): building the CPU backend only" >&2
endif

$(B)/evenkeel-server: $(call obj,server/main.c) $(AR_server)
	$(CC) -rdynamic -o $@ $^ $(ALL_LD) $(LIBS_SERVER)
$(B)/evenkeeld: $(call obj,supervisor/main.c) $(AR_supervisor)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SUPER)
$(B)/evenkeel-nvml: $(call obj,supervisor/nvml/main.c supervisor/io/nvml.c)
	$(CC) -o $@ $^ $(ALL_LD) $(shell pkg-config --libs libsystemd) -ldl
$(B)/evenkeelctl: $(call obj,supervisor/ctl/main.c) $(AR_ctl)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SUPER)
$(B)/evenkeel-bench: $(call obj,server/bench/main.c) $(AR_bench)
	$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER) -lcurl

$(B)/libevenkeel-mpi.so: kernels/mpi/module.c kernels/mpi/wire.h
	@mkdir -p $(@D)
	$(SAY) "  LINK    $@"
	$(Q)$(CC) $(ALL_C) $(MPI_CFLAGS) -fPIC -fvisibility=hidden -shared -o $@ $< $(ALL_LD) $(shell pkg-config --libs ompi-c)

define archive
$(B)/$(1).a: $(call obj,$(2))
	@rm -f $$@
	@$(AR) rcs $$@ $$^
endef
$(eval $(call archive,common,$(COMMON)))
$(eval $(call archive,kernels,$(KERNEL)))
$(eval $(call archive,cuda,$(CUDA_C) tests/cuda/images.c))
$(eval $(call archive,jinja,$(JINJA)))
$(eval $(call archive,text,$(TEXT)))
$(eval $(call archive,grammar,$(GRAMMAR)))
$(eval $(call archive,model,$(MODELS)))
$(eval $(call archive,engine,$(ENGINE)))
$(eval $(call archive,answer,$(ANSWER)))
$(eval $(call archive,api,$(API)))
$(eval $(call archive,net,$(NET)))
$(eval $(call archive,server,$(TOP)))
$(eval $(call archive,planner,$(PLANNER)))
$(eval $(call archive,engines,$(ENGINES)))
$(eval $(call archive,doctor,$(DOCTOR)))
$(eval $(call archive,law,$(LAW)))
$(eval $(call archive,supervisor,$(SUPER)))
$(eval $(call archive,ctl,$(CTL)))
$(eval $(call archive,bench,$(BENCH)))

# One file per instruction tier, with its own flags; the tier is chosen at run time.
$(B)/kernels/cpu/%_avx2.c.o: ISA := -O3 -mavx2 -mfma -mf16c
$(B)/kernels/cpu/%_avx512.c.o: ISA := -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
$(B)/kernels/cpu/%_avx512bf16.c.o: ISA := -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c
$(B)/kernels/cpu/%_avx512vnni.c.o: ISA := -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma
$(B)/kernels/cpu/%_amx.c.o: ISA := -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8 -mfma -mf16c

# The fuzzer is for parsers; clang takes minutes for a tier with sanitizers.
UNFUZZED = $(if $(FUZZER),$(if $(filter $(B)/kernels/%,$@),-O1 -fno-sanitize=all))

# The code of a unit test or a fuzz target runs for milliseconds: gcc takes half as long for it with -Og as with -O2,
# with -O1 and sanitizers three times as long as with -Og.
BRIEF = $(if $(FUZZER),,$(findstring /tests/unit/,$@)$(findstring /tests/fuzz/,$@))
SOON = $(if $(filter -O2,$(CFLAGS)),$(if $(BRIEF),-Og))

# Under sanitizers gcc takes twice as long with more than this, for a tier four times, and a third less with -Og, for
# what does not compute much. Its warnings are for the release, which is optimized more. What is fuzzed should be fast.
COMPUTES = $(if $(BRIEF),,$(strip $(foreach d,kernels cuda engine grammar model text sim,$(findstring /$(d)/,$@))))
CHECKED = $(if $(SAN),$(if $(FUZZER),,$(if $(COMPUTES),-O1,-Og) -g1 -w))

# TIERS=FOLDER, with SAN: what runs on one instruction tier comes from that build as it is (make check: gcc takes three
# minutes for these files with sanitizers), but for the tiers that OWN_TIERS names. The file `tiers` says what they are
# made from, so that another choice makes them again.
TIER_NAMES := avx2 avx512 avx512bf16 avx512vnni amx
TIER_OBJ := $(call obj,$(filter $(foreach t,$(filter-out $(OWN_TIERS),$(TIER_NAMES)),%_$(t).c),$(KERNEL)))
# PART=kernels|server|supervisor, with TIERS: a third of the sources, with its tests, has sanitizers, the others come from
# that build, too. common/ and what lies in server/ itself belong to each.
FOLDERS_kernels    := kernels kernels/cpu kernels/mpi kernels/cuda $(addprefix server/,model engine bench)
FOLDERS_server     := $(addprefix server/,net api grammar text text/jinja text/answer)
FOLDERS_supervisor := supervisor $(addprefix supervisor/,law io config servers web doctor planner engines ctl)
TESTS_kernels    := $(foreach a,cuda kernels model engine bench,unit/$(a)/%) unit/server/test_golden unit/server/test_oracle sim/sim_engine \
                    $(addprefix fuzz/fuzz_,checksum config events safetensors step)
TESTS_supervisor := $(foreach a,common planner doctor law supervisor ctl,unit/$(a)/%) sim/sim_control sim/sim_month \
                    $(addprefix fuzz/fuzz_,bundle doctor incidents live oomline plan promtext recorder recording state untar)
OTHER_PARTS := $(if $(PART),$(filter-out $(PART),kernels server supervisor))
PLAIN_OBJ := $(sort $(TIER_OBJ) $(call obj,$(wildcard $(foreach p,$(OTHER_PARTS),$(FOLDERS_$(p):%=%/*.c)))))
# of_part TESTS: those of this part; what no other part has is the server's.
tests_of = $(foreach t,$(TESTS_$(1)),tests/$(t).c)
of_part = $(if $(filter kernels supervisor,$(PART)),$(filter $(call tests_of,$(PART)),$(1)),$(filter-out \
          $(foreach p,$(OTHER_PARTS),$(call tests_of,$(p))),$(1)))
ifneq ($(SAN),)
$(PLAIN_OBJ) $(call obj,$(filter $(foreach t,$(TIER_NAMES),%_$(t).c),$(KERNEL))): $(B)/tiers
$(B)/tiers: FORCE
	@mkdir -p $(@D)
	@echo "$(TIERS) $(OWN_TIERS)" | cmp -s - $@ || echo "$(TIERS) $(OWN_TIERS)" >$@
ifneq ($(TIERS),)
$(PLAIN_OBJ): $(B)/%.o: $(TIERS)/%.o
	@mkdir -p $(@D)
	@cp $< $@
endif
endif

# Most of the time that loading with --quantization takes: worth its vectors.
$(B)/kernels/quantize.c.o: ISA := -O3

$(B)/%.c.o: %.c Makefile
	@mkdir -p $(@D)
	$(SAY) "  CC      $<"
	$(Q)$(CC) $(ALL_C) $(SOON) $(ISA) $(CHECKED) $(UNFUZZED) -MMD -MP -c -o $@ $<

# The status page is built into evenkeeld as it is.
$(B)/supervisor/web/page.c.o: supervisor/web/page.html
$(B)/supervisor/web/runbook.c.o: docs/runbook.md
# So is the signature catalog, into both programs that read it.
$(B)/supervisor/doctor/builtin.c.o: supervisor/doctor/signatures.yaml

# Tests: tests/unit/<area>/test_<module>.c
# The race checker takes the calls of other sanitizers: it is built without them.
# OMIT: programs, as "unit/cuda/%", that are neither built nor run (make check under the sanitizers).
UNIT := $(filter-out $(OMIT:%=tests/%.c) $(if $(HAVE_CXX),,tests/unit/cuda/%) $(if $(SAN),tests/unit/cuda/test_races.c), \
          $(call of_part,$(wildcard tests/unit/*/test_*.c)))
UNIT_BINS := $(UNIT:%.c=$(B)/%)
define unit_area
$(B)/tests/unit/$(1)/%: $(B)/tests/unit/$(1)/%.c.o $(B)/tests/unit/alloc.c.o $(AR_$(1))
	@$(CC) -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) $(ALL_LD) -lcmocka $(2) $$(WRAP)
endef
# Allocation failures are injected by wrapping the allocator in test binaries (tests/unit/alloc.h).
WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup
$(foreach a,common kernels cuda jinja text grammar model engine answer api net server,$(eval $(call unit_area,$(a),$$(LIBS_SERVER))))
$(eval $(call unit_area,bench,$$(LIBS_SERVER) -lcurl))
$(foreach a,planner doctor law supervisor ctl,$(eval $(call unit_area,$(a),$$(LIBS_SUPER))))

# Both programs' archives use common.a: no order of them suits the linker.
GROUP = -Wl,--start-group $(filter %.a,$^) -Wl,--end-group
# Fuzz targets: tests/fuzz/fuzz_<parser>.c; a 20-line replayer runs them over their corpus, or with
# SAN=fuzzer-no-link,... clang's fuzzer goes on from there (make fuzz).
FUZZER := $(findstring fuzzer,$(SAN))
FUZZ := $(call of_part,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_BINS := $(FUZZ:%.c=$(B)/%)
$(B)/tests/fuzz/%: $(B)/tests/fuzz/%.c.o $(if $(FUZZER),,$(B)/tests/fuzz/replay.c.o) $(AR_server) $(AR_supervisor) $(B)/ctl.a $(B)/planner.a $(B)/bench.a
	@$(CC) -o $@ $(filter %.o,$^) $(GROUP) $(ALL_LD) $(if $(FUZZER),-fsanitize=fuzzer) $(LIBS_SERVER) $(LIBS_SUPER)

# Programs that only tests run: tests/tools/<what>.c
$(B)/tests/tools/constrain: $(patsubst %,$(B)/%.o,$(wildcard server/text/answer/toolcall*.c))
$(B)/tests/tools/parsers: $(B)/server/text/answer/parsers.c.o
$(B)/tests/tools/%: $(B)/tests/tools/%.c.o $(AR_grammar)
	@$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER)

# A plug-in that takes the rest from the program that loads it.
$(B)/tests/tools/paced.so: tests/tools/paced.c Makefile
	@mkdir -p $(@D)
	@$(CC) $(ALL_C) -fPIC -fvisibility=hidden -MMD -MP -MF $@.d -MT $@ -shared -o $@ $<

# Simulations: tests/sim/sim_<what>.c
SIM := $(filter-out $(OMIT:%=tests/%.c),$(call of_part,$(wildcard tests/sim/sim_*.c)))
SIM_BINS := $(SIM:%.c=$(B)/%)
$(B)/tests/sim/%: $(B)/tests/sim/%.c.o $(AR_engine) $(AR_supervisor)
	@$(CC) -o $@ $(filter %.o,$^) $(GROUP) $(ALL_LD) $(LIBS_SERVER) $(LIBS_SUPER)

$(B)/tests/unit/model/test_forms: $(B)/tests/unit/model/published_forms.c.o

# The equality oracle: the test is its command line.
$(B)/tests/unit/server/test_oracle: $(B)/tests/unit/server/oracle.c.o $(B)/tests/bench/report.c.o

# The simulation of the engine and some unit tests run on the null backend.
$(patsubst %,$(B)/tests/unit/engine/test_%,sched refuse share states tenants yield foresee host engine engine_device revive keep constrain) $(B)/tests/sim/sim_engine \
$(B)/tests/unit/net/test_live: $(B)/tests/sim/null_backend.c.o

# The tier "amx" is tested on processors without tiles, too: their instructions are done in a handler.
TILED := $(patsubst %,$(B)/tests/unit/kernels/test_%,tier tier_gemm cpu shapes product) $(B)/tests/unit/server/test_golden \
         $(B)/tests/unit/server/test_oracle
$(TILED): $(B)/tests/unit/kernels/tiles.c.o
$(TILED): WRAP += -Wl,--wrap=cpu_tier_list,--wrap=cpu_tier_find

# The CUDA backend's tests run its kernels on the host, below a driver of their own; some goldens, too.
$(B)/tests/unit/model/test_goldens: | cuda-fake
$(patsubst %.c,$(B)/%,$(filter tests/unit/cuda/%,$(UNIT))): | $(B)/tests/cuda/libfake-cuda.so
$(B)/tests/unit/cuda/test_races: | $(B)/tests/cuda/libfake-cuda-races.so

unit-bins: need $(UNIT_BINS) $(FUZZ_BINS) $(SIM_BINS) $(B)/tests/tools/constrain

# Targets beyond the build: tests, benchmarks, demo, install.
include tools/targets.mk
include tools/cuda.mk

clean:
	rm -rf $(BUILD)

layers:
	@tools/layers.sh

.PHONY: all need clean layers unit-bins cuda
-include $(shell find $(B) -name '*.d' 2>/dev/null)
