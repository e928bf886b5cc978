# What is proved of the supervisor beyond its tests: the simulations beside the real server, what
# evenkeeld costs, and a month of it.
#
#   make check-sim-real [PACE="30000 100"]         -> build/reports/sim-real.json
SIM_REAL_C := tests/bench/sim_real.c tests/bench/replay.c server/bench/trace.c \
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
	@B=$(B) build/venv/bin/python tests/bench/sim_real.py
docs-sim-real:
	@build/venv/bin/python tests/bench/sim_real.py --docs
.PHONY: check-sim-real docs-sim-real
