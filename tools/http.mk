# The HTTP side under load: make bench-http [STREAMS=2000] [IDLE=10000] [SECONDS=5] [REPEAT=3] -> build/reports/http.json
$(B)/http-client: $(call obj,tests/bench/http_client.c)
	$(CC) -o $@ $^ $(ALL_LD)
bench-http: all venv $(B)/http-client
	@B=$(B) STREAMS=$(STREAMS) IDLE=$(IDLE) SECONDS=$(SECONDS) REPEAT=$(REPEAT) \
	  build/venv/bin/python tests/bench/bench_http.py $(B)/http-client
STREAMS ?= 2000
IDLE    ?= 10000
.PHONY: bench-http
# What reading /metrics costs, and whether bad readers are felt: make bench-scrape [WINDOW=1] [WINDOWS=10] -> build/reports/scrape.json
bench-scrape: all venv
	@B=$(B) SECONDS=$(WINDOW) REPEAT=$(WINDOWS) build/venv/bin/python tests/bench/bench_scrape.py
.PHONY: bench-scrape
# Where the time of 16 clients goes, from the flight recorder: make bench-where [MODEL=DIR] [CLIENTS=16] -> build/reports/bench-where.json
bench-where: all venv
	@B=$(B) MODEL="$(MODEL)" CLIENTS=$(CLIENTS) REPEAT=$(REPEAT) build/venv/bin/python tests/bench/bench_where.py
.PHONY: bench-where
# What others feel while one key attacks: make bench-attack [SECONDS=6] -> build/reports/attack.json
bench-attack: all venv
	@B=$(B) SECONDS=$(SECONDS) build/venv/bin/python tests/bench/bench_attack.py
.PHONY: bench-attack
