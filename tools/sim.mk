# The simulation of the engine beyond what `make test` runs: other and more seeds, planted bugs.
#
#   make sim SEEDS=20000 STEPS=1500 FIRST=1      make sim-mutants      make replay-mutants [ONLY=launcher]
SEEDS ?= 6000
STEPS ?= 1500
FIRST ?= 1

sim: need $(B)/tests/sim/sim_engine
	@$(B)/tests/sim/sim_engine $(SEEDS) $(STEPS) $(FIRST)

# Plants bugs into a copy of the engine, one at a time; the simulation must notice each.
sim-mutants: need $(AR_engine)
	@CC="$(CC)" ARCHIVES="$(AR_engine)" LIBS="$(LIBS_SERVER) -pthread" tests/sim/mutants.sh

# The control law over more random servers and loads than `make test`; planted bugs in it.
sim-control: need $(B)/tests/sim/sim_control
	@$(B)/tests/sim/sim_control $(or $(RUNS),100000) $(FIRST)
control-mutants:
	@CC="$(CC)" tests/sim/mutants_control.sh

# Planted bugs in what replaces an engine, and in the load that is run again.
REPLAY_TESTS := server/test_launcher kernels/test_apart_layout law/test_postmortem bench/test_rerun engine/test_revive engine/test_keep engine/test_host
replay-mutants: all venv $(REPLAY_TESTS:%=$(B)/tests/unit/%) $(B)/tests/sim/sim_engine
	@CC="$(CC)" B=$(B) ARCHIVES="$(AR_server) $(AR_supervisor) $(B)/bench.a" \
	  LIBS="$(LIBS_SERVER) $(LIBS_SUPER) -lcurl -pthread" ONLY="$(ONLY)" tests/sim/mutants_replay.sh

.PHONY: sim sim-mutants sim-control control-mutants replay-mutants

# How well the law controls: traces at six loads against fixed limits and other laws.
#
#   make bench-control [TRACES=DIR] [SECONDS=1200] [JOBS=2] [STEADY=1] [QUICK=1] [SEEDS=1]  -> build/reports/bench-control.json
#   make bench-control-heldout [SEED=7]   the same on loads that no constant was chosen on
CONTROL_C := tests/bench/bench_control.c tests/bench/plant.c server/bench/samples.c server/bench/trace.c \
             tests/bench/report.c
$(B)/bench_control: $(call obj,$(CONTROL_C)) $(AR_engine) $(AR_supervisor)
	$(CC) -o $@ $(filter %.o,$^) $(GROUP) $(ALL_LD) $(LIBS_SERVER) $(LIBS_SUPER)

bench-control: need $(B)/bench_control
	@mkdir -p build/reports
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) $(B)/bench_control \
	  $(or $(TRACES),tests/fixtures/traces) build/reports/bench-control.json $(or $(SECONDS),1200) \
	  $(or $(JOBS),2)
	@python3 tools/report_control.py build/reports/bench-control.json
bench-control-heldout: need $(B)/bench_control
	@mkdir -p build/reports
	@python3 tests/bench/heldout_traces.py build/heldout $(SEED)
	@COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) $(B)/bench_control build/heldout \
	  build/reports/bench-control-heldout.json $(or $(SECONDS),1200) $(or $(JOBS),2)
	@python3 tools/report_control.py build/reports/bench-control-heldout.json
docs-control:
	@python3 tools/report_control.py build/reports/bench-control.json --docs docs
	@python3 tools/report_control.py build/reports/bench-control-heldout.json --docs docs --heldout
.PHONY: bench-control bench-control-heldout docs-control
