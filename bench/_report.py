"""bench/results/*.json -> the section "Measured" of README.md. No figure there is typed by hand; a test holds them together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench/results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

#: in the order in which they are told: what each benchmark does
HOW = {
    "quality": "Choices on public data, learnt from one part and judged on another; regret is what a choice costs beyond the best",
    "map": "A synthetic Internet of 92,000 networks, 36 origins and 66 million samples; the edge's figures are of real workerd",
    "engines": "The aggregation of 20 million samples by numpy, against DuckDB on the same files",
    "edge": "Beside a Python Worker that only forwards to one fixed origin, alternating, medians of ratios",
    "chaos": "14 origins under load are killed, hung, slowed, broken and reset, and KV is cut off and corrupted, in random order",
    "edge_memory": "Memory of workerd over 200,000 requests after warm-up",
    "probe_accuracy": "Delays and loss injected into packets between network namespaces, told against the known truth; Caddy answers; idle cores are kept awake",
    "probe_rate": "10,000 targets, beside fping and prometheus-blackbox-exporter in the same run, one core each",
    "store": "Batches of 5,000 samples, each on the disk before the next, beside plain `executemany`; waits of others during a forget",
    "targets": "40,000 targets from a file; the ASNs of the annotated ones by a MaxMind database",
    "verification": "16 endpoints with 4 addresses each, over HTTP/3, the checker on one core",
}


def load() -> dict[str, dict[str, Any]]:
    """The results that there are, in the order of HOW."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    return {name: found[name] for name in [*HOW, *sorted(found.keys() - HOW.keys())] if name in found}


def section(results: dict[str, dict[str, Any]]) -> str:
    """The section's text, markers included."""
    lines = [BEGIN]
    for name, result in results.items():
        where = result["machine"]
        lines += [
            "",
            f"**`bench/{name}.py`**, {where['date']}, {where['cores']} cores of {where['cpu']}, Python {where['python']}.",
            f"{HOW.get(name, 'See the file')}.",
            "",
            "| what | measured | bar | |",
            "|---|---|---|---|",
        ]
        lines += [_row(name, bar) for bar in result["bars"]]
        if name == "chaos":
            lines += ["", _chaos(result)]
        if name == "map":
            lines += ["", _map(result["build"])]
    return "\n".join([*lines, "", END])


def _row(name: str, bar: dict[str, Any]) -> str:
    what = bar["name"].removeprefix(f"{name}_").replace("_", " ")
    sign = "≤" if bar["better"] == "lower" else "≥"
    return f"| {what} | {bar['value']:g} | {sign} {bar['bar']:g} | {'met' if bar['ok'] else '**missed**'} |"


def _chaos(result: dict[str, Any]) -> str:
    def told(counts: dict[str, Any]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in counts.items())

    return (
        f"{result['requests']:,} requests in {result['seconds']:g} s. Origins were: {told(result['origins_turned'])}; KV was: "
        f"{told(result['kv_turned'])}. Answered at try: {told(result['answered_at_try'])}. Excepted, because the breaker could not know "
        f"yet or the answer had begun: {told(result['excepted']) or 'none'}. Failed beyond that: {len(result['failed'])}."
    )


def _map(built: dict[str, Any]) -> str:
    cells = ", ".join(f"{count:,} {level}" for level, count in built["cells"].items())
    return (
        f"That map has {built['colours']:,} colours and {sum(built['cells'].values()):,} cells ({cells}); "
        f"{built['samples']:,} samples were used."
    )


def merged(readme: str, text: str) -> str:
    """README with the section in its place."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + text + after


def main() -> None:
    """Write README.md."""
    readme = ROOT / "README.md"
    readme.write_text(merged(readme.read_text(), section(load())))


if __name__ == "__main__":
    main()
