# The companion for a vLLM (supervisor/companion): standard library alone, so there is nothing to compile.
#
#   make companion        a wheel into build/dist, checked by mypy and ruff
#   make check-companion  its tests, with fakes of vLLM's classes; the real one is in make check-vllm
#
#   make bench-companion  microseconds a step
#
# $(B)/companion is what goes on vLLM's PYTHONPATH: the package and the two files by which vLLM finds its entry point.
COMPANION := $(wildcard supervisor/companion/evenkeel_vllm/*.py)
COMPANION_INFO := $(B)/companion/evenkeel_vllm-$(VERSION).dist-info

all: $(B)/companion/ready
$(B)/companion/ready: $(COMPANION) supervisor/companion/pyproject.toml VERSION
	@rm -rf $(@D)
	@mkdir -p $(@D)/evenkeel_vllm $(COMPANION_INFO)
	@cp $(COMPANION) $(@D)/evenkeel_vllm
	@printf 'Metadata-Version: 2.1\nName: evenkeel-vllm\nVersion: $(VERSION)\n' >$(COMPANION_INFO)/METADATA
	@printf '[vllm.general_plugins]\nevenkeel = evenkeel_vllm.control:plugin\n' >$(COMPANION_INFO)/entry_points.txt
	@touch $@

check-companion:
	@python3 -W error::ResourceWarning -m unittest discover -s tests/companion

build/venv-companion/ready: supervisor/companion/requirements.txt
	@echo "  VENV    build/venv-companion"
	@tools/venv.sh build/venv-companion -r $<
	@touch $@
companion: check-companion build/venv-companion/ready
	@cd supervisor/companion && ../../build/venv-companion/bin/mypy --no-incremental evenkeel_vllm
	@build/venv-companion/bin/ruff check -q --no-cache supervisor/companion
	@mkdir -p $(BUILD)/dist
	@build/venv-companion/bin/python -m flit_core.wheel --outdir $(BUILD)/dist supervisor/companion
	@ls $(BUILD)/dist/evenkeel_vllm-*.whl
# What it costs a step, on fakes.
bench-companion:
	@python3 tests/bench/bench_companion.py
.PHONY: companion check-companion bench-companion
