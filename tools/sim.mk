# The simulation of the engine beyond what `make test` runs: other and more seeds, planted bugs.
#
#   make sim SEEDS=20000 STEPS=1500 FIRST=1      make sim-mutants
SEEDS ?= 6000
STEPS ?= 1500
FIRST ?= 1

sim: need $(B)/tests/sim/sim_engine
	@$(B)/tests/sim/sim_engine $(SEEDS) $(STEPS) $(FIRST)

# Plants bugs into a copy of the engine, one at a time; the simulation must notice each.
sim-mutants:
	@CC="$(CC)" tests/sim/mutants.sh

.PHONY: sim sim-mutants
