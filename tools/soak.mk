# The equality oracle at length: REQUESTS= and SEED= as in tests/unit/server/test_oracle.c.
soak: need $(B)/tests/unit/server/test_oracle
	@mkdir -p build/reports
	@REQUESTS=$(or $(REQUESTS),100000) SEED=$(or $(SEED),1) MODEL=$(MODEL) \
	  COMMIT=$$(git rev-parse --short HEAD 2>/dev/null) REPORT=build/reports/soak.json \
	  $(B)/tests/unit/server/test_oracle
.PHONY: soak
