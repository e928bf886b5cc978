# Targets beyond the build.
cuda:
	@true
unit: unit-bins
	@B=$(B) tools/run-tests.sh $(UNIT_BINS)
test: all layers unit
.PHONY: unit test
