#!/usr/bin/env python3
"""Writes dashboards/*.json from the short descriptions below, so that panels stay consistent. usage: tools/dashboards.py [--check]

The JSON imports into Grafana 9 to 12; tools/dash-lint holds it to the rules of Grafana's linter, tools/dash-preview runs every query
on a real Prometheus and draws what came back.
"""
import json
import pathlib
import sys

OUT = pathlib.Path(__file__).resolve().parent.parent / "dashboards"
RATE = "$__rate_interval"
JOB = 'job=~"$job",instance=~"$instance"'
SEL = JOB + ',model_name=~"$model"'  # a server's page
SUP = JOB + ',server=~"$server"'     # evenkeeld's page


def rate(name, more="", by="", sel=SEL):
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({name}{{{sel}{',' + more if more else ''}}}[{RATE}]))"


def quantiles(family, by=""):
    more = f", {by}" if by else ""
    return [(f"p{round(q * 100)}" + (f" {{{{{by}}}}}" if by else ""), f"histogram_quantile({q}, sum by (le{more}) (rate({family}_bucket{{{SEL}}}[{RATE}])))")
            for q in ((0.5, 0.9, 0.99) if not by else (0.99,))]


def mean(legend, family):
    return (legend, f"{rate(family + '_sum')} / {rate(family + '_count')}")


def sums(name, more="", sel=SEL):
    return f"sum({name}{{{sel}{',' + more if more else ''}}})"


# Of all cards, or without one what the programs hold; and what of it servers know about.
USED = f'sum(evenkeel_supervisor_device_memory_bytes{{{JOB},kind="used"}}) or sum(process_resident_memory_bytes{{{JOB}}})'
TAKEN = f'sum(evenkeel_device_bytes{{{SEL},item!~"host_.*"}}) + {sums("evenkeel_devpool_reserved_bytes")}'

# Panels: (title, unit, kind, width of 24, [(legend, expression)], description)
CHARGED = " + ".join(f"{times}{rate('evenkeel_key_tokens_total', kind, 'key', JOB)}" for times, kind in (("", 'kind="prompt"'), ("2 * ", 'kind="answer"')))
LOAD = [
    ("Requests", "short", "timeseries", 8, [("running", sums("vllm:num_requests_running")), ("waiting", sums("vllm:num_requests_waiting"))],
     "Running and waiting. Waiting is not bad by itself: it is what a limit makes of load that does not fit."),
    ("Tokens", "short", "timeseries", 8, [("generated /s", rate("vllm:generation_tokens_total")), ("prompt /s", rate("vllm:prompt_tokens_total"))], "Tokens per second."),
    ("Finished requests", "reqps", "timeseries", 8, [("{{finished_reason}}", rate("vllm:request_success_total", by="finished_reason"))], "Per second, by reason."),
]
LATENCY = [
    ("Time to first token", "s", "timeseries", 8, quantiles("vllm:time_to_first_token_seconds"), "From arrival to the first token; the queue is part of it."),
    ("Inter-token latency", "s", "timeseries", 8, quantiles("vllm:inter_token_latency_seconds"), "Between two tokens of a request."),
    ("End-to-end latency", "s", "timeseries", 8, quantiles("vllm:e2e_request_latency_seconds"), "Of whole requests."),
    ("Where a request's time goes", "s", "timeseries", 12, [mean("queue", "vllm:request_queue_time_seconds"), mean("prefill", "vllm:request_prefill_time_seconds"),
     mean("decode", "vllm:request_decode_time_seconds")], "Means of waiting, prompt and answer."),
    ("Lengths", "short", "timeseries", 12, [mean("prompt", "vllm:request_prompt_tokens"), mean("answer", "vllm:request_generation_tokens")], "Mean tokens of a request."),
]
KV = [
    ("KV usage", "percentunit", "gauge", 6, [("{{instance}}", f"max by (instance) (vllm:kv_cache_usage_perc{{{SEL}}})")],
     "Blocks held by live requests. High is efficient unless requests are preempted."),
    ("KV usage over time", "percentunit", "timeseries", 9, [("{{instance}}", f"max by (instance) (vllm:kv_cache_usage_perc{{{SEL}}})")], "Watch it together with preemptions."),
    ("Preemptions", "short", "timeseries", 9, [("per second", rate("vllm:num_preemptions_total"))], "The sign that the KV cache is too small for what runs."),
    ("Prefix cache", "percentunit", "timeseries", 12, [("hit rate", f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}")], "Prompt tokens found of those looked up."),
    ("Tokens per step", "short", "timeseries", 12, [mean("mean", "vllm:iteration_tokens_total")], "How full a step is."),
]
SERVING = {
    "Promises": [
        ("Kept over the last hour", "percentunit", "stat", 8, [("{{job}} {{slo}}", 'min by (job, slo) (1 - evenkeel:slo_errors:ratio_rate1h{job=~"$job"})')],
         "Share of good events: first tokens within 2.5 s, gaps of at most 0.2 s, answers that are no 5xx."),
        ("Budget left", "percentunit", "stat", 8, [("{{job}} {{slo}}", 'min by (job, slo) (1 - evenkeel:slo_errors:ratio_rate3d{job=~"$job"} / on (slo) group_left () (1 - evenkeel:slo_target:ratio))')],
         "Of the errors that three days may have; below zero it is overspent."),
        ("Burn rate", "short", "timeseries", 8, [("{{job}} {{slo}}", 'max by (job, slo) (evenkeel:slo_errors:ratio_rate5m{job=~"$job"} / on (slo) group_left () (1 - evenkeel:slo_target:ratio))')],
         "How many times faster than sustainable the budget is spent. Above 14.4 for an hour somebody is paged."),
    ],
    "Load": [(LOAD[0][0], LOAD[0][1], LOAD[0][2], 8, LOAD[0][4] + [("limit", sums("evenkeel_limit", 'limit="max_num_running_seqs"'))], LOAD[0][5]),
             (LOAD[1][0], LOAD[1][1], LOAD[1][2], 8, LOAD[1][4] + [("recomputed /s", rate("evenkeel_recomputed_tokens_total"))], "Tokens per second; recomputed ones are work lost to preemption."), LOAD[2],
             ("Why requests wait", "short", "timeseries", 24, [("{{reason}}", f"sum by (reason) (evenkeel_admission_held{{{SEL}}})")],
              "Waiting requests, at what keeps the first of them out. growth: each fits now, but not at the size it is expected to grow to; limit: as many run as may.")],
    "Latency": LATENCY,
    "KV cache": KV,
    "Admission": [
        ("Refused", "reqps", "timeseries", 8, [("{{reason}}", rate("evenkeel_refused_total", by="reason"))], "Requests refused, by cause."),
        ("Answers", "reqps", "timeseries", 8, [("{{code}}", rate("evenkeel_http_requests_total", by="code", sel=JOB + ',route=~"POST /v1/.*"'))], "By status code."),
        ("Clients that left", "reqps", "timeseries", 8, [("aborted", rate("evenkeel_http_aborted_total", sel=JOB))], "Their tokens were computed for nobody."),
        ("Oldest waiting request", "s", "timeseries", 12, [("{{instance}}", f"max by (instance) (evenkeel_queue_oldest_seconds{{{SEL}}})")], "Age of the queue."),
        ("Prompt tokens waiting", "short", "timeseries", 12, [("{{instance}}", f"max by (instance) (evenkeel_queued_tokens{{{SEL}}})")], "What max_num_queued_tokens limits."),
    ],
    "Keys": [
        ("Tokens by key", "short", "timeseries", 12, [("{{key}}", f"topk(10, {rate('evenkeel_key_tokens_total', by='key', sel=JOB)})")], "Computed per second, of prompts and answers; the ten busiest keys."),
        ("Charged by weight", "short", "timeseries", 12, [("{{key}}", f"topk(10, ({CHARGED}) / max by (key) (evenkeel_key_weight{{{JOB}}}))")],
         "Tokens per second, those of answers twice, over the key's weight. Of keys that all have work none gets far above another for long."),
        ("Waiting by key", "short", "timeseries", 12, [("{{key}}", f"topk(10, sum by (key) (evenkeel_key_waiting_requests{{{JOB}}}))")], "Answers without a first token."),
        ("Ahead of the next turn", "short", "timeseries", 12, [("{{key}}", f"topk(10, max by (key) (evenkeel_key_ahead_tokens{{{JOB}}}))")],
         "Tokens that a key was served beyond the one whose turn is next. High and rising: this key is the flood, and others come before it."),
    ],
}
MEMORY = {
    "KV pool": [
        ("Usage", "percentunit", "gauge", 6, KV[0][4], KV[0][5]),
        ("Blocks", "short", "timeseries", 9, [("{{state}}", f'sum by (state) (evenkeel_kv_blocks{{{SEL},state!="total"}})')], "Used, cached (given up when needed) and free."),
        ("Minutes to exhaustion", "m", "timeseries", 9, [("{{instance}}", f'sum by (instance) (evenkeel_kv_blocks{{{SEL},state=~"free|cached"}}) / clamp_min(60 * sum by (instance) (deriv(evenkeel_kv_blocks{{{SEL},state="used"}}[5m])), 0.01)')],
         "At the growth of the last five minutes; large when it does not grow."),
        ("Preemptions", "short", "timeseries", 8, [("{{reason}}", rate("evenkeel_preemptions_total", by="reason"))], "Per second, by what becomes of the cache."),
        ("Work lost", "short", "timeseries", 8, [("recomputed tokens /s", rate("evenkeel_recomputed_tokens_total"))], "Tokens computed again after a preemption."),
        ("Waste", "percentunit", "timeseries", 8, [("empty places", f"max(evenkeel_kv_waste_ratio{{{SEL}}})")], "Empty places in the last blocks of live requests."),
        ("Blocks of a request", "short", "timeseries", 8, [("mean", f"avg(evenkeel_kv_request_blocks{{{SEL}}})")], "Average of the running ones."),
        ("Room for more", "short", "timeseries", 8, [("requests of {{length}} length", f"sum by (length) (evenkeel_kv_fit_requests{{{SEL}}})")], "How many more requests would fit."),
        ("Evictions", "short", "timeseries", 8, [("cached blocks /s", rate("evenkeel_prefix_evictions_total"))], "Cached blocks given up for new ones."),
    ],
    "Host tier": [
        ("Swapped", "Bps", "timeseries", 12, [("{{direction}}", rate("evenkeel_swapped_bytes_total", by="direction"))], "Both directions high at once is thrash."),
        ("Host blocks", "short", "timeseries", 12, [("{{state}}", f"sum by (state) (evenkeel_host_kv_blocks{{{SEL}}})")], "Of the swap space."),
    ],
    "Memory": [
        ("Planned", "bytes", "timeseries", 8, [("{{item}}", f"sum by (item) (evenkeel_planned_bytes{{{SEL}}})")], "What every byte is for; the sum is the plan.", "stack"),
        ("The card", "bytes", "timeseries", 8, [("{{item}}", f'sum by (item) (evenkeel_device_bytes{{{SEL},item!~"host_.*"}})'),
         ("outside the KV pool", sums("evenkeel_devpool_reserved_bytes")), ("others", f"clamp_min(({USED}) - ({TAKEN}), 0)"),
         ("free", f'sum(evenkeel_supervisor_device_memory_bytes{{{JOB},kind="total"}}) - sum(evenkeel_supervisor_device_memory_bytes{{{JOB},kind="used"}}) or sum(evenkeel_supervisor_host_memory_available_bytes{{{JOB}}})')],
         "What servers took, what else is used and what is free: it sums to the card. Without a GPU it is the machine's memory, and others are the rest of the two programs.", "stack"),
        ("Plan and use", "bytes", "timeseries", 8, [("{{where}} {{figure}}", f"sum by (where, figure) (evenkeel_memory_bytes{{{SEL}}})")], "More than 3 % above the plan is an alert."),
        ("Outside the KV pool", "bytes", "timeseries", 12, [("reserved", sums("evenkeel_devpool_reserved_bytes")), ("used", sums("evenkeel_devpool_used_bytes"))], "Reserved and used."),
        ("Fragmentation", "percentunit", "timeseries", 12, [("{{instance}}", f"max by (instance) (1 - evenkeel_devpool_used_high_bytes{{{SEL}}} / evenkeel_devpool_reserved_high_bytes{{{SEL}}})")],
         "Share of what was reserved at most that was never used. Above 70 % for long leads to a drain and restart."),
    ],
    "Failures": [
        ("Out of memory, 24 h", "short", "stat", 5, [("{{class}}", f'sum by (class) (increase(evenkeel_supervisor_exits_total{{{SUP},class=~".+_OOM"}}[24h]))')], "By class."),
        ("Xid, 24 h", "short", "stat", 5, [("{{instance}}", f"sum by (instance) (increase(evenkeel_supervisor_device_xid_total{{{JOB}}}[24h]))")], "Errors of GPUs in the kernel's log."),
        ("Ends of servers", "short", "timeseries", 7, [("{{server}} {{class}}", f"sum by (server, class) (increase(evenkeel_supervisor_exits_total{{{SUP}}}[{RATE}])) > 0 or sum by (server) (0 * evenkeel_supervisor_server_up{{{SUP}}})")], "By class; evenkeelctl explain has the evidence."),
        ("Restarts", "short", "timeseries", 7, [("{{server}} {{cause}}", f"sum by (server, cause) (increase(evenkeel_supervisor_restarts_total{{{SUP}}}[1h]))")], "In the last hour, by cause."),
    ],
}
SUPERVISOR = {
    "Servers": [
        ("Ready", "short", "stat", 6, [("{{server}}", f"min by (server) (evenkeel_supervisor_server_ready{{{SUP}}})")], "1 while a server takes requests."),
        ("State", "short", "state-timeline", 9, [("{{server}} {{state}}", f"max by (server, state) (evenkeel_supervisor_server_state{{{SUP}}}) == 1")], "The state that each server is in."),
        ("Engine step age", "s", "timeseries", 9, [("{{instance}}", f"max by (instance) (evenkeel_engine_step_age_seconds{{{JOB}}})")], "Age of the step under way; grows when the engine stands still."),
        ("Engine processes replaced", "short", "timeseries", 12, [("{{instance}} {{cause}}", f"sum by (instance, cause) (increase(evenkeel_engine_restarts_total{{{JOB}}}[{RATE}])) > 0 or sum by (instance) (0 * evenkeel_engine_restarts_total{{{JOB}}})")],
         "With --engine-process: by cause; planned ones are on purpose. Requests wait and go on with the same text."),
        ("Pauses for an engine", "s", "timeseries", 12, [("p50", f"histogram_quantile(0.5, sum by (le) (rate(evenkeel_engine_pause_seconds_bucket{{{JOB}}}[{RATE}])))"),
         ("p99", f"histogram_quantile(0.99, sum by (le) (rate(evenkeel_engine_pause_seconds_bucket{{{JOB}}}[{RATE}])))"),
         ("computed again, tokens/s", f"sum(rate(evenkeel_engine_recomputed_tokens_total{{{JOB}}}[{RATE}]))")], "How long requests waited for another engine, and what was computed again."),
    ],
    "Limits": [
        ("max_num_running_seqs", "short", "timeseries", 8, [("{{server}} limit", f'max by (server) (evenkeel_supervisor_limit{{{SUP},limit="max_num_running_seqs"}})'),
         ("{{server}} most", f'max by (server) (evenkeel_supervisor_limit_max{{{SUP},limit="max_num_running_seqs"}})'), ("{{server}} least", f'max by (server) (evenkeel_supervisor_limit_min{{{SUP},limit="max_num_running_seqs"}})')],
         "The limit in force between its bounds; marks are decisions with their reasons."),
        ("max_num_batched_tokens", "short", "timeseries", 8, [("{{server}} limit", f'max by (server) (evenkeel_supervisor_limit{{{SUP},limit="max_num_batched_tokens"}})'),
         ("{{server}} most", f'max by (server) (evenkeel_supervisor_limit_max{{{SUP},limit="max_num_batched_tokens"}})')], "The token budget of a step."),
        ("Kept free at an admission", "percentunit", "timeseries", 8, [("{{instance}} watermark", f'max by (instance) (evenkeel_limit{{{SEL},limit="watermark"}})')],
         "Share of the KV cache; evenkeeld raises it before it lowers a limit (RESERVE_MORE) and gives it back by and by."),
        ("Pinned", "short", "stat", 6, [("{{server}} {{limit}}", f"max by (server, limit) (evenkeel_supervisor_limit_pinned{{{SUP}}})")], "1 while an operator holds a limit."),
        ("Decisions", "short", "timeseries", 18, [("{{server}} {{action}} {{reason}}", f"sum by (server, action, reason) (increase(evenkeel_supervisor_decisions_total{{{SUP}}}[{RATE}]))")], "Each with its reason; evenkeelctl explain has the numbers."),
    ],
    "The controller": [
        ("State of the controller", "short", "state-timeline", 8, [("{{server}} {{state}}", f"max by (server, state) (evenkeel_supervisor_policy_state{{{SUP}}}) == 1")], "init, healthy, pressure, hold, recover, sat_low, degraded."),
        ("KV usage as the controller sees it", "percentunit", "timeseries", 8, [("{{server}}", f"max by (server) (evenkeel_supervisor_kv_usage{{{SUP}}})")], "Of the last good reading."),
        ("Since the last decision", "s", "timeseries", 8, [("{{server}}", f"time() - max by (server) (evenkeel_supervisor_last_decision_timestamp_seconds{{{SUP}}})")], "Long is good news."),
    ],
    "Its own health": [
        ("Readings", "short", "timeseries", 8, [("{{server}} {{result}}", f"sum by (server, result) (rate(evenkeel_supervisor_scrapes_total{{{SUP}}}[{RATE}]))")], "Of the servers' metrics, per second, by result."),
        ("Time of a reading", "s", "timeseries", 8, [("p99", f"histogram_quantile(0.99, sum by (le) (rate(evenkeel_supervisor_scrape_duration_seconds_bucket{{{SUP}}}[{RATE}])))")], "99th percentile."),
        ("Signal", "short", "stat", 8, [("{{server}}", f"min by (server) (evenkeel_supervisor_signal_good{{{SUP}}})")], "1 while the last reading was whole; limits are frozen after three bad ones of six."),
        ("Hangs, 24 h", "short", "stat", 6, [("{{server}}", f"sum by (server) (increase(evenkeel_supervisor_hangs_total{{{SUP}}}[24h]))")], "Ended after two proofs."),
        ("Configuration", "short", "stat", 6, [("{{instance}}", f"min by (instance) (evenkeel_supervisor_config_last_reload_successful{{{JOB}}})")], "1 when the last reading of it succeeded."),
        ("Processor", "percentunit", "timeseries", 6, [("{{job}} {{instance}}", f"sum by (job, instance) (rate(process_cpu_seconds_total{{{JOB}}}[{RATE}]))")], "Cores in use."),
        ("Resident memory", "bytes", "timeseries", 6, [("{{job}} {{instance}}", f"sum by (job, instance) (process_resident_memory_bytes{{{JOB}}})")], "Of both programs."),
    ],
}
FLEET = {
    "All appliances": [
        ("Up", "short", "stat", 6, [("{{job}} {{instance}}", f"min by (job, instance) (up{{{JOB}}})")], "1 while Prometheus can read it."),
        ("Not ready", "short", "stat", 6, [("servers", f"count(evenkeel_supervisor_server_ready{{{JOB}}} == 0) or vector(0)")], "Servers that take no requests."),
        ("Tokens", "short", "stat", 6, [("generated /s", rate("vllm:generation_tokens_total"))], "All together."),
        ("Versions", "short", "stat", 6, [("{{version}} {{backend}}", f"count by (version, backend) (evenkeel_build_info{{{JOB}}})")], "How many servers run which."),
    ],
    "Side by side": [
        ("Running", "short", "timeseries", 8, [("{{instance}}", f"sum by (instance) (vllm:num_requests_running{{{SEL}}})")], "By instance."),
        ("Waiting", "short", "timeseries", 8, [("{{instance}}", f"sum by (instance) (vllm:num_requests_waiting{{{SEL}}})")], "Routers that read it send new requests elsewhere."),
        ("KV usage", "percentunit", "timeseries", 8, KV[1][4], "By instance."),
        ("Tokens per second", "short", "timeseries", 8, [("{{instance}}", rate("vllm:generation_tokens_total", by="instance"))], "Generated, by instance."),
        ("Time to first token, p99", "s", "timeseries", 8, quantiles("vllm:time_to_first_token_seconds", "instance"), "By instance."),
        ("Share of the ceiling", "percentunit", "timeseries", 8, [("{{instance}}", f'max by (instance) (evenkeel_limit{{{SEL},limit="max_num_running_seqs"}} / evenkeel_limit_ceiling{{{SEL},limit="max_num_running_seqs"}})')],
         "How far evenkeeld has lowered each: 1 is not at all."),
        ("Prefix cache", "percentunit", "timeseries", 8, [("{{instance}}", f"{rate('vllm:prefix_cache_hits_total', by='instance')} / {rate('vllm:prefix_cache_queries_total', by='instance')}")], "Hit rate; prefix affinity of a router shows here."),
        ("Refused", "reqps", "timeseries", 8, [("{{instance}}", rate("evenkeel_refused_total", by="instance"))], "By instance."),
        ("Restarts, 1 h", "short", "timeseries", 8, [("{{instance}} {{server}} {{cause}}", f"sum by (instance, server, cause) (increase(evenkeel_supervisor_restarts_total{{{JOB}}}[1h]))")], "By cause."),
    ],
}
BOARDS = [("evenkeel-serving", "Evenkeel / Serving", SERVING, True), ("evenkeel-memory", "Evenkeel / Memory and OOM", MEMORY, True),
          ("evenkeel-supervisor", "Evenkeel / Supervisor", SUPERVISOR, True), ("evenkeel-fleet", "Evenkeel / Fleet", FLEET, True),
          ("evenkeel-vllm", "Evenkeel / A plain vLLM", {"Load": LOAD, "Latency": LATENCY, "KV cache": KV}, False)]
SOURCE = {"type": "prometheus", "uid": "$datasource"}


def panel(number, x, y, spec):
    title, unit, kind, width, targets, description = spec[:6]
    options = {"timeseries": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "none"}},
               "state-timeline": {"showValue": "never", "mergeValues": True, "rowHeight": 0.8, "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False}},
               "gauge": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}},
               "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value_and_name"}}[kind]
    defaults = {"unit": unit}
    if title not in ("Budget left",):
        defaults["min"] = 0
    if kind == "gauge":
        defaults.update(max=1, thresholds={"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "yellow", "value": 0.9}]})
    if spec[6:] == ("stack",):
        defaults["custom"] = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
    return {"id": number, "type": kind, "title": title, "description": description, "datasource": SOURCE,
            "gridPos": {"h": 8, "w": width, "x": x, "y": y}, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
            "targets": [{"refId": chr(65 + i), "expr": expr, "legendFormat": legend, "datasource": SOURCE} for i, (legend, expr) in enumerate(targets)]}


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "includeAll": True, "multi": True,
            "allValue": ".*", "refresh": 2, "sort": 1, "current": {"text": "All", "value": "$__all"}}


def dashboard(uid, title, rows, ours):
    panels, number, y = [], 0, 0
    for name, specs in rows.items():
        number += 1
        panels.append({"id": number, "type": "row", "title": name, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        y, x = y + 1, 0
        for spec in specs:
            if x + spec[3] > 24:
                x, y = 0, y + 8
            number += 1
            panels.append(panel(number, x, y, spec))
            x += spec[3]
        y += 8
    both = '{__name__=~"vllm:num_requests_running|evenkeel_supervisor_build_info"}' if ours else "vllm:num_requests_running"
    variables = [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
                 variable("job", "Job", f"label_values({both}, job)"), variable("instance", "Instance", f"label_values({both}, instance)"),
                 variable("model", "Model", "label_values(vllm:num_requests_running, model_name)")]
    marks = []
    if ours:
        variables.append(variable("server", "Server", "label_values(evenkeel_supervisor_server_up, server)"))
        marks = [{"name": "Decisions", "datasource": SOURCE, "enable": True, "iconColor": "orange", "titleFormat": "{{server}}: {{action}}", "textFormat": "{{reason}}",
                  "expr": f'sum by (server, action, reason) (increase(evenkeel_supervisor_decisions_total{{{SUP},action!="note"}}[{RATE}])) > 0', "step": "15s"}]
    return {"id": None, "uid": uid, "title": title, "tags": ["evenkeel", "llm"], "schemaVersion": 39, "version": 1, "editable": False, "graphTooltip": 1, "refresh": "10s",
            "timezone": "browser", "time": {"from": "now-30m", "to": "now"}, "annotations": {"list": marks},
            "links": [{"title": "Evenkeel", "type": "dashboards", "tags": ["evenkeel"], "asDropdown": True, "includeVars": True, "keepTime": True}],
            "templating": {"list": variables}, "panels": panels}


def main():
    stale = False
    for uid, title, rows, ours in BOARDS:
        text = json.dumps(dashboard(uid, title, rows, ours), indent=1, ensure_ascii=False) + "\n"
        path = OUT / f"{uid}.json"
        if "--check" in sys.argv and (not path.exists() or path.read_text() != text):
            print(f"{path.name} differs from its description: run tools/dashboards.py")
            stale = True
        elif "--check" not in sys.argv:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
