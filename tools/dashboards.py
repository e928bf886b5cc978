#!/usr/bin/env python3
"""Writes dashboards/*.json from one short description, so that panels stay consistent. usage: tools/dashboards.py [--check]"""
import json
import pathlib
import sys

OUT = pathlib.Path(__file__).resolve().parent.parent / "dashboards"
RATE = "$__rate_interval"
SEL = 'instance=~"$instance",model_name=~"$model"'


def quantile(q, family):
    return f"histogram_quantile({q}, sum by (le) (rate({family}_bucket{{{SEL}}}[{RATE}])))"


# rows: title -> panels: (title, unit, kind, width of 24, [(legend, expression)], description)
OVERVIEW = {
    "Serving": [
        ("Requests", "short", "timeseries", 8, [("running", f"sum(vllm:num_requests_running{{{SEL}}})"), ("waiting", f"sum(vllm:num_requests_waiting{{{SEL}}})"),
         ("limit", f'sum(evenkeel_limit{{{SEL},limit="max_num_running_seqs"}})')], "Running and waiting requests against the limit in force."),
        ("Tokens per second", "short", "timeseries", 8, [("generated", f"sum(rate(vllm:generation_tokens_total{{{SEL}}}[{RATE}]))"),
         ("prompt", f"sum(rate(vllm:prompt_tokens_total{{{SEL}}}[{RATE}]))"), ("recomputed", f"sum(rate(evenkeel_recomputed_tokens_total{{{SEL}}}[{RATE}]))")],
         "Recomputed tokens are work lost to preemption."),
        ("Finished requests", "reqps", "timeseries", 8, [("{{finished_reason}}", f"sum by (finished_reason) (rate(vllm:request_success_total{{{SEL}}}[{RATE}]))")],
         "By reason."),
        ("Time to first token", "s", "timeseries", 8, [(f"p{round(q * 100)}", quantile(q, "vllm:time_to_first_token_seconds")) for q in (0.5, 0.9, 0.99)], "From arrival."),
        ("Inter-token latency", "s", "timeseries", 8, [(f"p{round(q * 100)}", quantile(q, "vllm:inter_token_latency_seconds")) for q in (0.5, 0.9, 0.99)], "Between two tokens of a request."),
        ("End-to-end latency", "s", "timeseries", 8, [(f"p{round(q * 100)}", quantile(q, "vllm:e2e_request_latency_seconds")) for q in (0.5, 0.9, 0.99)], "Of whole requests."),
    ],
    "KV cache": [
        ("KV usage", "percentunit", "gauge", 6, [("", f"max(vllm:kv_cache_usage_perc{{{SEL}}})")], "Blocks pinned by live requests. High is efficient unless requests are preempted."),
        ("Blocks", "short", "timeseries", 9, [("{{state}}", f'sum by (state) (evenkeel_kv_blocks{{{SEL},state!="total"}})')], "Used, cached (evictable) and free blocks."),
        ("Preemptions", "short", "timeseries", 9, [("per second", f"sum(rate(vllm:num_preemptions_total{{{SEL}}}[{RATE}]))")], "The sign of harm."),
    ],
    "Supervisor": [
        ("Server ready", "short", "stat", 4, [("{{server}}", "evenkeel_supervisor_server_ready")], "1 when ready."),
        ("Limits", "short", "timeseries", 10, [("{{server}} {{limit}}", "evenkeel_supervisor_limit")], "Limits that evenkeeld last read back."),
        ("Decisions", "short", "timeseries", 10, [("{{server}} {{action}} {{reason}}", f"sum by (server, action, reason) (increase(evenkeel_supervisor_decisions_total[{RATE}]))")],
         "Each with its reason; evenkeelctl explain has the numbers."),
        ("Restarts", "short", "timeseries", 12, [("{{server}} {{cause}}", "sum by (server, cause) (increase(evenkeel_supervisor_restarts_total[1h]))")], "In the last hour, by cause."),
        ("Engine step age", "s", "timeseries", 12, [("{{instance}}", f"max by (instance) (evenkeel_engine_step_age_seconds{{{SEL}}})")], "Age of the step under way; grows when the engine stands still."),
    ],
}


def panel(number, x, y, spec):
    title, unit, kind, width, targets, description = spec
    options = {"timeseries": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "none"}},
               "gauge": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}},
               "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}}[kind]
    defaults = {"unit": unit, "min": 0}
    if unit == "percentunit":
        defaults["max"] = 1
    return {"id": number, "type": kind, "title": title, "description": description, "datasource": {"type": "prometheus", "uid": "$datasource"},
            "gridPos": {"h": 8, "w": width, "x": x, "y": y}, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
            "targets": [{"refId": chr(65 + i), "expr": expr, "legendFormat": legend, "datasource": {"type": "prometheus", "uid": "$datasource"}}
                        for i, (legend, expr) in enumerate(targets)]}


def dashboard(uid, title, rows):
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
    variable = lambda name, label, query: {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "$datasource"},
                                           "query": {"query": query, "refId": name}, "includeAll": True, "multi": True, "allValue": ".*", "refresh": 2,
                                           "current": {"text": "All", "value": "$__all"}}
    return {"uid": uid, "title": title, "tags": ["evenkeel", "llm"], "schemaVersion": 39, "version": 1, "editable": True, "refresh": "10s", "timezone": "browser",
            "time": {"from": "now-30m", "to": "now"}, "annotations": {"list": []}, "links": [],
            "templating": {"list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
                                    variable("instance", "Instance", "label_values(vllm:num_requests_running, instance)"),
                                    variable("model", "Model", "label_values(vllm:num_requests_running, model_name)")]},
            "panels": panels}


def main():
    stale = False
    for name, uid, title, rows in [("evenkeel-overview.json", "evenkeel-overview", "Evenkeel / Overview", OVERVIEW)]:
        text = json.dumps(dashboard(uid, title, rows), indent=1, ensure_ascii=False) + "\n"
        path = OUT / name
        if "--check" in sys.argv and (not path.exists() or path.read_text() != text):
            print(f"{path.name} differs from its description: run tools/dashboards.py")
            stale = True
        elif "--check" not in sys.argv:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
