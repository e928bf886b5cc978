#!/usr/bin/env python3
"""Writes alerts/evenkeel-slo.rules.yml: error ratios over seven windows and burn-rate alerts. usage: tools/slo-rules.py [--check]

Change a promise here (the limit must be a bucket's edge) and run it again. Works on evenkeel-server and on a plain vLLM.
"""
import pathlib
import sys

OUT = pathlib.Path(__file__).resolve().parent.parent / "alerts/evenkeel-slo.rules.yml"
# Another place for it: external_labels of Prometheus, see docs/monitoring.md.
RUNBOOK = "{{ with $externalLabels.runbook }}{{ . }}{{ else }}file:///usr/share/doc/evenkeel-monitoring/runbook.md{{ end }}"
WINDOWS = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"]
POSTS = 'handler=~"/v1/(chat/)?completions"'


def late(family, limit):
    return (f'1 - sum by (job) (rate({family}_bucket{{le="{limit}"}}[WINDOW])) / '
            f'(sum by (job) (rate({family}_count[WINDOW])) > 0)')


# name: share that must be good, what is good, error ratio
SLOS = {
    "ttft": (0.95, "first tokens within 2.5 s", late("vllm:time_to_first_token_seconds", "2.5")),
    "itl": (0.99, "gaps between tokens of at most 0.2 s", late("vllm:inter_token_latency_seconds", "0.2")),
    "success": (0.995, "answers that are no 5xx",
                f'(sum by (job) (rate(http_requests_total{{{POSTS},status="5xx"}}[WINDOW])) or 0 * sum by (job) (rate(http_requests_total{{{POSTS}}}[WINDOW])))'
                f' / (sum by (job) (rate(http_requests_total{{{POSTS}}}[WINDOW])) > 0)'),
}
# severity, for, long window, short window, how many times faster than the budget allows, over 30 days
BURNS = [("critical", "2m", "1h", "5m", 14.4), ("critical", "15m", "6h", "30m", 6), ("warning", "1h", "1d", "2h", 3), ("warning", "3h", "3d", "6h", 1)]


def text():
    out = ["# Written by tools/slo-rules.py. What users feel: the share of bad events, and how fast it spends a budget of 30 days.",
           "# " + "; ".join(f"{n}: {t:.1%} {what}" for n, (t, what, _) in SLOS.items()) + ".",
           "groups:", "  - name: evenkeel-slo-recording", "    interval: 30s", "    rules:",
           "      - record: evenkeel:requests:rate5m", "        expr: sum by (job) (rate(vllm:request_success_total[5m]))"]
    for name, (target, _, expr) in SLOS.items():
        for w in WINDOWS:
            out += [f"      - record: evenkeel:slo_errors:ratio_rate{w}", f"        expr: {expr.replace('WINDOW', w)}", f"        labels: {{slo: {name}}}"]
        out += ["      - record: evenkeel:slo_target:ratio", f"        expr: vector({target})", f"        labels: {{slo: {name}}}"]
    out += ["", "  - name: evenkeel-slo", "    rules:"]
    for severity, hold, long, short, factor in BURNS:
        for name, (target, what, _) in SLOS.items():
            most = round(factor * (1 - target), 6)
            out += ["      - alert: EvenkeelSloBurn", "        expr: |",
                    f'          evenkeel:slo_errors:ratio_rate{long}{{slo="{name}"}} > {most:g}',
                    f'            and evenkeel:slo_errors:ratio_rate{short}{{slo="{name}"}} > {most:g}',
                    "            and on (job) evenkeel:requests:rate5m > 0.01",
                    f"        for: {hold}", f"        labels: {{severity: {severity}, slo: {name}, window: {long}}}", "        annotations:",
                    f'          summary: "{{{{ $labels.job }}}}: the promise of {target:.1%} {what} is being broken"',
                    f'          description: "{{{{ $value | humanizePercentage }}}} bad over {long}: the budget of 30 days is spent {factor:g} times faster than it lasts."',
                    f"          runbook_url: '{RUNBOOK}#evenkeelsloburn'"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        if not OUT.exists() or OUT.read_text() != text():
            sys.exit(f"{OUT.name} differs from its description: run tools/slo-rules.py")
    else:
        OUT.write_text(text())
