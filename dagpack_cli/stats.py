"""What a build stored about itself, as JSON or as a page to read. Nothing is computed from the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagpack_cli.manifest import UNMERGED_LAYOUTS, Manifest, PackOptions

__all__ = ["describe", "describe_plan", "format_plan", "format_stats", "format_summary"]

_UNITS = ("windows", "rows", "attention_edges", "blocks")
_LEDGER = {
    "examples": ("in", "kept", "empty", "single_token", "dropped"),
    "pairs": ("in", "in_windows", "pruned", "truncated", "dropped"),
}
_BASELINES = {
    "examples_as_given": "examples as given, one a window",
    "one_example_per_turn": "one example per assistant turn",
    "best_fit": "best-fit packing of the examples",
    "shared_best_fit": "the same, shared inside windows",
    "first_fit": "shared first fit in input order",
    "walk": "depth-first walk",
}


def describe(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return everything `stats` knows as JSON values.

    Args:
        manifest: of the build.
        name: of its generation.
    """
    return {
        "generation": name,
        "fingerprint": manifest.fingerprint,
        "versions": manifest.versions,
        "tokenizer": manifest.tokenizer,
        "seq_len": manifest.pack.seq_len,
        "window_len": manifest.pack.capacity,
        "layout": manifest.pack.layout,
        "merge": _merge(manifest),
        "objective": manifest.pack.objective,
        "ledger": manifest.ledger,
        "partitions": {part: _partition(manifest, part) for part in manifest.partitions},
    }


def _merge(manifest: Manifest) -> str:
    return "none" if manifest.pack.layout in UNMERGED_LAYOUTS else manifest.trie.merge


def _window_len(manifest: Manifest) -> str:
    return "" if manifest.pack.window_len is None else f"window-len {manifest.pack.window_len:,}, "


def _partition(manifest: Manifest, part: str) -> dict[str, Any]:
    facts = _ratios(manifest.packing[part], manifest.pack.capacity)
    return facts | {"trie": manifest.statistics["trie"].get(part, {})}


def _ratios(packing: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the facts of a packing with what follows from them; ``size``: most rows of a window."""
    bound, windows = packing["bound"], packing["windows"]
    return {
        **packing,
        "fill": _ratio(packing["rows"], windows * size),
        "cells": windows * size,
        "dense_pairs": windows * size * size,
        "windows_over_bound": _ratio(windows, bound["windows"]),
        "rows_over_bound": _ratio(packing["rows"], bound["rows"]),
        "attention_over_bound": _ratio(packing["attention_edges"], bound["attention_edges"]),
        "unavoidable_replay": _ratio(bound["rows"], packing["distinct_rows"]),
        "savings": {
            name: {unit: _ratio(costs[unit], packing[unit]) for unit in _UNITS}
            for name, costs in packing["baselines"].items()
        },
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def format_summary(manifest: Manifest) -> str:
    """Return the few lines that `build` ends with: what was saved, and that nothing was lost."""
    total = manifest.ledger["total"]
    lines = []
    for part in manifest.partitions:
        facts = _partition(manifest, part)
        saving = facts["savings"]["best_fit"]
        examples = _count(manifest.ledger[part]["examples"]["kept"], "example")
        lines.append(
            f"{part}: {examples}, {_count(facts['pairs'], 'pair')} in {_count(facts['windows'], 'window')} of "
            f"{manifest.pack.capacity:,}; lower bound {facts['bound']['windows']:,}; fill {facts['fill']:.1%}"
        )
        lines.append(
            f"  {facts['rows']:,} rows to compute; against best-fit packing of the same examples "
            f"{saving['rows']:.2f}x fewer rows, {saving['attention_edges']:.2f}x fewer attention edges"
        )
        if "supervised_rows_also_in_train" in facts["trie"]:
            lines.append(f"  {_leak(facts['trie'])}")
    pairs = total["pairs"]
    bad = manifest.ledger["reading"]["bad_records"]
    word = "accounted for" if pairs["truncated"] or pairs["dropped"] or bad else "nothing lost"
    lines.append(
        f"{word}: {pairs['in']:,} pairs in = {pairs['in_windows']:,} in windows + {pairs['pruned']:,} pruned "
        f"+ {pairs['truncated']:,} truncated + {pairs['dropped']:,} dropped"
    )
    if manifest.ignored:
        name, reason = manifest.ignored[0]
        lines.append(f"ignored: {_count(len(manifest.ignored), 'file')}; dagpack stats lists them: {name}: {reason}")
    lines += _left_out(manifest.ledger["reading"])
    if bad:
        lines.append(f"skipped: {_count(bad, 'bad record')}; dagpack stats lists the first {min(bad, 20)}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_plan(plans: Sequence[tuple[int, PackOptions, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what `plan` knows as JSON values: one entry a length and --min-shared."""
    return [
        {
            "seq_len": options.seq_len,
            "window_len": options.capacity,
            "min_shared": number,
            "partitions": {part: _ratios(facts, options.capacity) for part, facts in found.items()},
        }
        for number, options, found in plans
    ]


def format_plan(plans: Sequence[tuple[int, PackOptions, dict[str, Any]]]) -> str:
    """Return the tables that `plan` prints: one of the packing, and one of each kind of saving."""
    described = describe_plan(plans)
    several = len({entry["min_shared"] for entry in described}) > 1
    names = ["windows", "bound", "ratio", "rows/bound", "attention/bound", "unavoidable replay", "fill"]
    lines: list[str] = []
    for part in described[0]["partitions"] if described else ():
        table = [[part, *(["--min-shared", "rows"] if several else []), *names]]
        for entry in described:
            facts = entry["partitions"][part]
            ratios = ("windows_over_bound", "rows_over_bound", "attention_over_bound", "unavoidable_replay")
            counts = [f"{facts['windows']:,}", f"{facts['bound']['windows']:,}"]
            table.append(
                [
                    f"{entry['window_len']:,}",
                    *([f"{entry['min_shared']:,}", f"{facts['rows']:,}"] if several else []),
                    *counts,
                    *(f"{facts[name]:.4f}" for name in ratios),
                    f"{facts['fill']:.1%}",
                ]
            )
        lines += [*([""] if lines else []), *_aligned(table)]
        for unit in _UNITS:
            lines += ["", *_plan_savings(described, part, unit, several=several)]
    return "\n".join(lines)


def _plan_savings(described: list[dict[str, Any]], part: str, unit: str, *, several: bool) -> list[str]:
    savings = [
        (
            f"{entry['window_len']:,}" + (f", N {entry['min_shared']:,}" if several else ""),
            entry["partitions"][part]["savings"],
        )
        for entry in described
    ]
    names = [name for name in _BASELINES if any(name in found for _, found in savings)]
    table = [
        [f"fewer {unit.replace('_', ' ').replace('blocks', '128-blocks')}, against", *(size for size, _ in savings)]
    ]
    for name in names:
        cells = [f"{found[name][unit]:.3f}x" if name in found else "-" for _, found in savings]
        table.append([_BASELINES[name], *cells])
    return _aligned(table)


def _leak(profile: dict[str, Any]) -> str:
    return (
        f"{profile['supervised_rows_also_in_train']:,} of {profile['supervised_rows']:,} supervised val rows "
        "also occur in train"
    )


def format_stats(manifest: Manifest, name: str) -> str:
    """Return the page that `dagpack stats` prints."""
    reading = manifest.ledger["reading"]
    tokenizer = manifest.tokenizer
    lines = [
        f"generation   {name}",
        f"layout       {manifest.pack.layout}, merge {_merge(manifest)}, seq-len {manifest.pack.seq_len:,}, "
        f"{_window_len(manifest)}objective {manifest.pack.objective}",
        f"tokenizer    {tokenizer['kind']}, {tokenizer['vocab_size']:,} ids, sha256 {str(tokenizer['sha256'])[:12]}",
        *_template_lines(manifest),
        f"read         {reading['files']:,} files, {reading['records']:,} records; "
        f"{reading['bad_records']:,} bad records, {reading['ignored_files']:,} files ignored"
        + (f", {reading['unfinished']:,} still being written" if reading.get("unfinished") else ""),
        *_reading_lines(reading),
        *(f"             ignored {file}: {reason}" for file, reason in manifest.ignored[:20]),
        *(f"             skipped {where}: {reason}" for where, reason in reading["bad"]),
        "",
        *_ledger_lines(manifest),
    ]
    for part in manifest.partitions:
        lines += ["", *_partition_lines(manifest, part)]
    return "\n".join(lines)


def _template_lines(manifest: Manifest) -> list[str]:
    """Return how conversations were written, and how often that changed what had been written before."""
    template = manifest.tokenizer.get("chat_template")
    if template is None:
        return []
    hashes = template.get("sha256", {})
    text = ", ".join(f"{name} sha256 {value[:12]}" for name, value in hashes.items())
    day = f", date {template['date']}" if template.get("date") else ""
    lines = [f"template     {'Jinja, ' + text if text else 'built-in ' + template['name']}{day}"]
    stability = manifest.ledger["reading"]["stability"]
    if stability["checked"]:
        broken = stability["checked"] - stability["stable"]
        causes = ", ".join(f"{cause} {count:,}" for cause, count in stability["breaks"].items())
        lines.append(
            f"             {broken:,} of {stability['checked']:,} prefixes looked at are written differently "
            f"in the longer conversation{': ' + causes if causes else ''}"
        )
        lines += [f"             {where}: {cause}" for where, cause in stability["first"][:3]]
    return lines


def _reading_lines(reading: dict[str, Any]) -> list[str]:
    """Return what was made of which format, and what trains nothing."""
    parts = [
        f"{name} {examples:,} from {_count(files, 'file')}" for name, (files, examples) in reading["formats"].items()
    ]
    lines = [f"             examples: {', '.join(parts)}"] if parts else []
    lines += [f"             {line}" for line in _left_out(reading)]
    if reading["silent_files"]:
        names = ", ".join(reading["silent"][:8]) + (", ..." if reading["silent_files"] > 8 else "")
        lines.append(f"             {_count(reading['silent_files'], 'file')} made no example: {names}")
    return lines


def _left_out(reading: dict[str, Any]) -> list[str]:
    """Return what trains nothing, and why."""
    lines = []
    if reading["untrained"]:
        lines.append(f"dropped: {_count(reading['untrained'], 'conversation')} in which nothing is trained")
    if reading["repeated"]:
        lines.append(f"dropped: {_count(reading['repeated'], 'conversation')} of which others train every answer")
    if reading["rejected"]:
        lines.append(f"context only: {_count(reading['rejected'], 'rejected answer')}")
    return lines


def _ledger_lines(manifest: Manifest) -> list[str]:
    columns = [*manifest.partitions, "total"]
    table = [["ledger", *columns]]
    for unit, entries in _LEDGER.items():
        for entry in entries:
            label = f"{unit} in" if entry == "in" else f"  {entry.replace('_', ' ')}"
            table.append([label, *(f"{manifest.ledger[column][unit][entry]:,}" for column in columns)])
    table.append(["duplicate pairs merged", *(f"{manifest.ledger[column]['merged']:,}" for column in columns)])
    return _aligned(table)


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in table
    ]


def _partition_lines(manifest: Manifest, part: str) -> list[str]:
    facts = _partition(manifest, part)
    bound, trie = facts["bound"], facts["trie"]
    table = [
        [part, "here", "lower bound", "ratio"],
        ["windows", f"{facts['windows']:,}", f"{bound['windows']:,}", f"{facts['windows_over_bound']:.4f}"],
        ["rows computed", f"{facts['rows']:,}", f"{bound['rows']:,}", f"{facts['rows_over_bound']:.4f}"],
        [
            "attention edges",
            f"{facts['attention_edges']:,}",
            f"{bound['attention_edges']:,}",
            f"{facts['attention_over_bound']:.4f}",
        ],
    ]
    lines = [
        *_aligned(table),
        *(["the bound on windows is the covering bound: prices of leaves"] if bound.get("covering_windows") else []),
        f"fill {facts['fill']:.2%} of {facts['cells']:,} cells; {facts['distinct_rows']:,} distinct rows stand for "
        f"{facts['pairs']:,} pairs, {facts['supervised_pairs']:,} supervised",
        f"unavoidable replay {facts['unavoidable_replay']:.4f} (bound on rows / distinct rows), whatever the packer",
        f"dense attention would score {facts['dense_pairs']:,} pairs a head; counts are not a claim of speed",
        "",
        *_saving_lines(facts),
    ]
    if manifest.pack.layout == "walk":
        lines.append(
            "the walk closes windows by rows: a leaf cut in two is replayed, so it can cost more than it saves"
        )
    if estimates := facts.get("min_shared"):
        lines += ["", *_min_shared_lines(estimates)]
    lines += ["", *_trie_lines(trie)]
    if "supervised_rows_also_in_train" in trie:
        lines.append(_leak(trie))
    return lines


def _saving_lines(facts: dict[str, Any]) -> list[str]:
    table = [["fewer, against", *(unit.replace("_", " ").replace("blocks", "128-blocks") for unit in _UNITS)]]
    for name, label in _BASELINES.items():
        if name in facts["savings"]:
            saving = facts["savings"][name]
            table.append([label, *(f"{saving[unit]:.3f}x" for unit in _UNITS)])
    return _aligned(table)


def _min_shared_lines(estimates: list[dict[str, Any]]) -> list[str]:
    """Return the table of what several --min-shared would give; the first is the build's own."""
    alone = ("trees", "rows", "attention_edges")
    table = [["--min-shared", "trees", "trie rows", "trie edges", *(unit.replace("_", " ") for unit in _UNITS)]]
    table[0][-1] = "128-blocks"
    for entry in estimates:
        packed = entry["packed"] or {}
        table.append(
            [
                f"{entry['min_shared']:,}",
                *(f"{entry['trie'][unit]:,}" for unit in alone),
                *(f"{packed[unit]:,}" if packed else "-" for unit in _UNITS),
            ]
        )
    lines = [
        *_aligned(table),
        "trees, trie rows and edges are exact, before packing; the rest is an estimate by one cheap rule, bottom-up "
        "best fit alone, for every N, the build's own (the first) too; dagpack plan --min-shared packs in earnest",
    ]
    if not all(entry["packed"] for entry in estimates):
        lines.append("-: not estimated, the trie is too large for a glance")
    return lines


def _trie_lines(trie: dict[str, Any]) -> list[str]:
    lines = [
        f"trie         {_count(trie['tokens'], 'token')} in {_count(trie['nodes'], 'node')}; "
        f"{_count(trie['roots'], 'root')}, "
        f"{trie['leaves']:,} leaves, {trie['branching_nodes']:,} branching, at most {trie['most_children']:,} children",
    ]
    if trie["depth_histogram"]:
        table = [["depth from", "rows", "pairs", "pairs/row"]]
        for low, rows, pairs in trie["depth_histogram"]:
            table.append([f"{low:,}", f"{rows:,}", f"{pairs:,}", f"{_ratio(pairs, rows):.2f}"])
        lines += _aligned(table)
    if trie["shared_prefixes"]:
        lines.append("largest shared prefixes (tokens saved = (examples - 1) x run)")
        for entry in trie["shared_prefixes"]:
            text = _one_line(entry["begins"]) + (f" ... {_one_line(entry['ends'])}" if entry["ends"] else "")
            lines.append(
                f"  {entry['tokens_saved']:>12,} saved: {entry['examples']:,} examples share "
                f"{entry['run_tokens']:,} tokens, up to token {entry['prefix_tokens']:,}: {text}"
            )
    if trie.get("sharing_stops"):
        lines.append("sharing stops here, although the text goes on the same: what differs could stand behind it")
        for stop in trie["sharing_stops"]:
            lines.append(
                f"  {stop['equal_tokens']:>12,} equal tokens behind token {stop['shared_tokens']:,}, where "
                f"{_count(stop['examples'], 'example')} part over a {stop['kind']}:"
            )
            lines += [f"      {_one_line(stop[name])}" for name in ("one", "other")]
    for state, action, outcomes in trie.get("markov_conflicts", [])[:5]:
        lines.append(
            f"  not Markov: state {_one_line(state)} with action {_one_line(action)} leads to {len(outcomes)} states"
        )
    return lines


def _one_line(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= 60 else shown[:57] + "..."
