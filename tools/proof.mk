# What is proved of the supervisor beyond its tests: the simulations beside the real server, what
# evenkeeld costs, and a month of it.
#
#   make check-sim-real [PACE="30000 100"] [ONLY="prefix swap"] [SHARE=0.6]  -> build/reports/sim-real.json
#   make month [DAYS=30]       make bench-supervisor [LASTS=60]  -> build/reports/supervisor.json
SIM_REAL_C := tests/bench/sim_real.c tests/bench/checked.c server/bench/schedsim.c server/bench/samples.c server/bench/trace.c \
              tests/sim/null_backend.c tests/unit/alloc.c
$(B)/sim_real: $(call obj,$(SIM_REAL_C)) $(AR_engine)
	@$(CC) -o $@ $^ $(ALL_LD) $(LIBS_SERVER) $(WRAP)

# A server that finds the paced backend beside itself, as others find CUDA's.
PACED := $(B)/paced/evenkeel-server $(B)/paced/libevenkeel-cuda.so
$(B)/paced/evenkeel-server: $(B)/evenkeel-server
	@mkdir -p $(@D)
	@cp -f $< $@
$(B)/paced/libevenkeel-cuda.so: $(B)/pic/tests/sim/paced_backend.c.o
	@mkdir -p $(@D)
	@$(CC) -shared -o $@ $^ $(ALL_LD)

check-sim-real: all venv $(B)/sim_real $(PACED)
	@B=$(B) ONLY="$(ONLY)" SHARE=$(SHARE) build/venv/bin/python tests/bench/sim_real.py
docs-sim-real:
	@build/venv/bin/python tests/bench/sim_real.py --docs

# A month of polls through the parts of evenkeeld that keep something; `make test` runs two days.
month: need $(B)/tests/sim/sim_month
	@$(B)/tests/sim/sim_month $(or $(DAYS),30)

# What evenkeeld costs at one poll a second, beside a server under load.
bench-supervisor: all venv
	@LASTS=$(LASTS) B=$(B) build/venv/bin/python tests/bench/bench_supervisor.py
.PHONY: check-sim-real docs-sim-real month bench-supervisor
