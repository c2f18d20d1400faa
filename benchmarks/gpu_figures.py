"""The figures of one GPU and their limits, from the report of matrices/throughput_gpu.yaml and bench_overhead.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FULL_ROWS = "packed per real token over full rows per slot"  # as harness/reporting/build.py names its ratios
FUSION = re.compile(r"rotary function, unfused over fused, (\d+) documents")
MIN_SHARE = 0.9  # of the tokens per second of full rows
MAX_OVERHEAD = 1.01
OVERHEAD = re.compile(r"probe over bare: ([\d.]+) times \(([\d.]+) to ([\d.]+) in (\d+) rounds\)")


@dataclass(frozen=True)
class Figure:
    """One figure and its limit. `verdict`: pass | fail | undecided (nothing was measured) | shown (it has no limit)."""

    name: str
    measured: str
    limit: str
    verdict: str
    where: str = ""  # the cell


def figures_of(report: Mapping[str, Any] | None, overhead: str) -> list[Figure]:
    """Every figure of every cell that measured it; one line for each figure that no cell measured.

    `overhead`: output of bench_overhead.py.
    """
    cells = report["cells"] if report else []
    found = [overhead_of(overhead)]
    for name, limit, find in (
        ("packed tokens/s over slots/s of full rows", f"at least {MIN_SHARE}", share_of_full_rows),
        ("rotary function, unfused over fused", "the slope distinguishes them", fusion),
    ):
        seen = [
            Figure(name, text, limit, verdict, cell["id"])
            for cell in cells
            for text, verdict in find(cell["throughput"]["ratios"])
        ]
        found += seen or [Figure(name, "not measured", limit, "undecided")]
    return found + [Figure("rate", text, "none", "shown", cell["id"]) for cell in cells for text in rates(cell)]


def share_of_full_rows(ratios: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Ratios of tokens per second, the inverse of the report's ratios of times; undecided where noise is too large."""
    for ratio in ratios:
        if ratio["what"] == FULL_ROWS:
            low, high = 1 / ratio["high"], 1 / ratio["low"]
            verdict = "fail" if high < MIN_SHARE else "pass" if 1 / ratio["median"] >= MIN_SHARE else "undecided"
            yield f"{1 / ratio['median']:.3g} ({low:.3g} to {high:.3g} in {ratio['rounds']} rounds)", verdict


def fusion(ratios: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The ratio at the largest number of documents; slower means that the whole interval is above the bound."""
    found = [(int(named[1]), ratio) for ratio in ratios if (named := FUSION.fullmatch(ratio["what"]))]
    if found:
        documents, ratio = max(found, key=lambda pair: pair[0])
        interval = f"{ratio['low']:.3g} to {ratio['high']:.3g} in {ratio['rounds']} rounds"
        text = f"{ratio['median']:.3g} times ({interval}), {documents} documents"
        yield text, "pass" if ratio["verdict"] == "slower" else "fail"


def overhead_of(text: str) -> Figure:
    """The overhead of the harness on a timed step."""
    name, limit = "timed step over a bare Megatron loop", f"at most {MAX_OVERHEAD}"
    seen = OVERHEAD.search(text)
    if seen is None:
        return Figure(name, "not measured", limit, "undecided")
    median, low, high = (float(seen[number]) for number in (1, 2, 3))
    verdict = "fail" if low > MAX_OVERHEAD else "pass" if median <= MAX_OVERHEAD else "undecided"
    return Figure(name, f"{median:.4f} ({low:.4f} to {high:.4f} in {seen[4]} rounds)", limit, verdict)


def rates(cell: Mapping[str, Any]) -> Iterator[str]:
    """Tokens per second, TFLOP/s and MFU of each load of the timing leg."""
    for load in cell["throughput"].get("loads", []):
        named = f"{load['load']}, {load['documents']} documents" if load["documents"] else load["load"]
        mfu = "" if load["mfu"] is None else f", MFU {100 * load['mfu']:.1f} %"
        real = f"{load['real_tokens_per_s']:,.0f} real tokens/s in {load['slots_per_s']:,.0f} slots/s"
        yield f"{named}: {real}, {load['tflops_per_s']:.0f} TFLOP/s{mfu}"
