"""What a run found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.measure import print_table

__all__ = ["print_report"]


def print_report(results: Mapping[str, Any]) -> None:
    """Print the tables of a run, its errors and what it left out."""
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    steps = {**results["checks"], **results["speed"]}
    checks = {name: step for name, step in results["checks"].items() if "error" not in step}
    measures = {name: step for name, step in results["speed"].items() if "error" not in step}
    print("\nchecks: largest differences, over the largest value of their kind")
    for name, step in checks.items():
        print(f"{'passed' if step['passed'] else 'FAILED'}: {name}: {_found(step)}")
    for kind in ("layers", "attention"):
        _print_layouts(kind, measures)
    _print_masks(measures)
    for name, step in steps.items():
        if "error" in step:
            print(f"broke: {name}: {step['error']}")
    for name in results["skipped"]:
        print(f"skipped, no time left: {name}")
    print(f"{results['seconds']} s")


def _found(step: Mapping[str, Any]) -> str:
    """Return the numbers of a check: how far sides are apart, what is allowed, what wrong masks do."""
    if "limits" not in step:
        return ", ".join(f"{name} {_short(value)}" for name, value in step.items() if name != "passed")
    parts = [f"{side} {_numbers(off)}" for side, off in step["off"].items()]
    return f"{'; '.join(parts)}; limits {_numbers(step['limits'])}; wrong masks {_numbers(step['mutants'])}"


def _numbers(values: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.1e}" for name, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def _print_layouts(kind: str, measures: Mapping[str, Any]) -> None:
    """Print a row for every corpus and layout; the gain is that in the examples' pairs a second over best fit."""
    rows = []
    for name, step in measures.items():
        if not name.startswith(f"{kind}, "):
            continue
        family, length, layout = name.split(", ")[1].split()
        other = measures.get(f"{kind}, {family} {length} best-fit")
        causal = measures.get(f"causal {length}") if kind == "attention" else None
        rows.append(
            (
                f"{family} {int(length):,} {layout}",
                f"{step['windows']:,}",
                f"{step['rows']:,.0f}",
                f"{step['pairs']:,.0f}",
                f"{step['ms']:.2f}",
                f"{step['ms'] / causal['ms']:.2f}" if causal else "",
                f"{step['pairs_per_second']:,.0f}",
                f"{step['rows_per_second']:,.0f}",
                f"{step['pairs_per_second'] / other['pairs_per_second']:.2f}" if other else "",
                f"{step['peak_megabytes']:,.0f}",
            )
        )
    header = ("corpus", "windows", "rows each", "pairs each", "ms", "of causal", "pairs/s", "rows/s", "of best-fit")
    print_table(f"{kind}: forward and backward of a window, bfloat16", (*header, "peak MB"), rows)


def _print_masks(measures: Mapping[str, Any]) -> None:
    """Print what masks cost, and which share of a step of the layers that is."""
    rows = []
    for name, step in measures.items():
        if not name.startswith("mask, "):
            continue
        length, kind = name.split(", ")[1].split()
        layers = measures.get(f"layers, agent {length} dag")
        rows.append(
            (
                f"{int(length):,} {kind}",
                f"{step['ms']:.3f}",
                f"{step['wall_ms']:.3f}",
                f"{step['first_ms']:.0f}",
                f"{step['peak_megabytes']:,.1f}",
                f"{100 * step['wall_ms'] / layers['ms']:.2f}" if layers else "",
            )
        )
    header = ("mask of a window", "ms on device", "ms waited for", "ms first", "peak MB", "% of a step of the layers")
    print_table("masks", header, rows)
