"""What earlier builds have read: splits that stay in ``cache/``, found again by what was in their inputs.

A split is complete or not there: it is written in the staging area and renamed. An input is known by its
name, its format, a digest of what reading it looks at (its siblings too, where a folder is one
conversation), and everything that decides what reading gives: options, tokenizer, template and versions.
Where it stands among the other inputs does not matter.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagpack_cli.examples import Segment, copy_examples, write_lines
from dagpack_cli.failpoints import step
from dagpack_cli.manifest import fingerprint
from dagpack_cli.stages.receipts import Listener, read_receipt, write_receipt
from dagpack_cli.stages.symbol_lines import SymbolLines
from dagpack_cli.storage import sha256_file, sync_directory, sync_tree

__all__ = [
    "SYMBOLS_FILE",
    "ReadSource",
    "adopt_split",
    "are_whole",
    "finish_split",
    "known_sources",
    "prune_cache",
    "source_symbols",
]

SYMBOLS_FILE = "symbols.jsonl"
_RECEIPT = "receipt.json"
_MOST_SPLITS = 64  # small ones; more are put together, for a build looks into every one
_SMALL_TOKENS = 1 << 20
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ReadSource:
    """An input that has been read.

    Attributes:
        directory: of the split that holds its examples.
        facts: ``name`` and ``format`` of the input; ``content``, a digest of what reading it looks at;
            ``first`` and ``last``, the half-open range of its examples; ``symbols``, that of its symbols;
            ``tokens``, how many it gave; and what reading counted.
    """

    directory: Path
    facts: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str]:
        """What the input is found again by."""
        return self.facts["name"], self.facts["format"], self.facts["content"]


def finish_split(directory: Path, identity: str, sources: Sequence[Mapping[str, Any]]) -> None:
    """Vouch for the files of a split that is complete: the receipt is written last."""
    sync_tree(directory)
    files = {
        path.name: [path.stat().st_size, sha256_file(path)]
        for path in sorted(directory.iterdir())
        if path.name != _RECEIPT
    }
    write_receipt(directory, {"identity": identity, "sources": list(sources), "files": files})


def adopt_split(cache: Path, split: Path) -> Path:
    """Move a finished split into the cache; return where it is.

    Args:
        cache: the cache's folder, which is created.
        split: of `finish_split`, on the same file system.
    """
    receipt = read_receipt(split)
    if receipt is None:
        raise FileNotFoundError(f"{split} has no receipt")
    keys = [[source[name] for name in ("name", "format", "content")] for source in receipt["sources"]]
    target = cache / fingerprint(receipt["identity"], keys)[:_NAME_DIGITS]
    cache.mkdir(exist_ok=True)
    with step("cache-rename"):
        shutil.rmtree(target, ignore_errors=True)
        split.rename(target)
    sync_directory(cache)
    return target


def known_sources(
    cache: Path, identity: str, wanted: Iterable[tuple[str, str, str]], listener: Listener
) -> dict[tuple[str, str, str], ReadSource]:
    """Return which of the wanted inputs have been read, from splits whose checksums are right.

    Args:
        cache: the cache's folder, which need not exist.
        identity: of what decides what reading gives.
        wanted: (name, format, content) of inputs.
        listener: hears of a damaged split, which is removed: its inputs are read again.

    Time O(bytes of the splits that are used).
    """
    names = set(wanted)
    found: dict[tuple[str, str, str], ReadSource] = {}
    for directory in sorted(path for path in cache.glob("*") if path.is_dir()):
        receipt = read_receipt(directory)
        if receipt is None or receipt.get("identity") != identity:
            continue
        sources = [ReadSource(directory, facts) for facts in receipt["sources"]]
        used = [source for source in sources if source.key in names and source.key not in found]
        if not used:
            continue
        if not _is_whole(directory, receipt["files"]):
            listener.note(f"{directory}: damaged; its {len(sources):,} inputs are read again")
            shutil.rmtree(directory, ignore_errors=True)
            continue
        found |= {source.key: source for source in used}
    return found


def _is_whole(directory: Path, files: Mapping[str, Sequence[Any]]) -> bool:
    try:
        return all(
            (directory / name).stat().st_size == size and sha256_file(directory / name) == sha256
            for name, (size, sha256) in files.items()
        )
    except OSError:
        return False


def are_whole(sources: Iterable[ReadSource]) -> bool:
    """Tell whether the splits of inputs are as they were written. O(bytes of the splits)."""
    receipts = {source.directory: read_receipt(source.directory) for source in sources}
    return all(receipt is not None and _is_whole(split, receipt["files"]) for split, receipt in receipts.items())


def source_symbols(sources: Iterable[ReadSource]) -> SymbolLines:
    """Return the symbols of every input, in the order in which it first shows them; they stay in their files."""
    return SymbolLines((source.directory / SYMBOLS_FILE, *source.facts["symbols"]) for source in sources)


def prune_cache(cache: Path, used: Sequence[ReadSource], work: Path) -> None:
    """Remove splits that a build has not used, and put small remains of others together.

    Args:
        cache: the cache's folder.
        used: the inputs of the build, in any order.
        work: a folder on the same file system in which a split can be made.
    """
    by_split: dict[Path, list[ReadSource]] = {}
    for source in used:
        if source.directory.is_dir():  # anybody may have emptied the cache
            by_split.setdefault(source.directory, []).append(source)
    for path in cache.glob("*"):
        if path not in by_split:
            _remove(path)
    live = {split: _num_tokens(source.facts for source in sources) for split, sources in by_split.items()}
    small = [split for split, num in live.items() if num < _SMALL_TOKENS]
    wasteful = [split for split, num in live.items() if 2 * num < _num_tokens(_sources_of(split))]
    chosen = {*wasteful, *(small if len(small) > _MOST_SPLITS else ())}
    if not chosen:
        return
    kept = adopt_split(cache, _together([source for split in sorted(chosen) for source in by_split[split]], work))
    for split in chosen - {kept}:
        _remove(split)


def _remove(split: Path) -> None:
    with step("cache-remove"):
        shutil.rmtree(split, ignore_errors=True)


def _sources_of(split: Path) -> list[Mapping[str, Any]]:
    return list((read_receipt(split) or {"sources": []})["sources"])


def _num_tokens(sources: Iterable[Mapping[str, Any]]) -> int:
    return sum(facts["tokens"] for facts in sources)


def _together(sources: Sequence[ReadSource], work: Path) -> Path:
    """Return a finished split of inputs that stand in several."""
    directory = work / "together"
    shutil.rmtree(directory, ignore_errors=True)
    segments = [Segment(source.directory, source.facts["first"], source.facts["last"]) for source in sources]
    copy_examples(segments, directory)
    has_symbols = (sources[0].directory / SYMBOLS_FILE).exists()
    facts: list[Mapping[str, Any]] = []
    first = first_symbol = 0
    for source in sources:
        last = first + source.facts["last"] - source.facts["first"]
        last_symbol = first_symbol + source.facts["symbols"][1] - source.facts["symbols"][0]
        facts.append({**source.facts, "first": first, "last": last, "symbols": [first_symbol, last_symbol]})
        first, first_symbol = last, last_symbol
    if has_symbols:
        write_lines(directory / SYMBOLS_FILE, source_symbols(sources))
    finish_split(directory, (read_receipt(sources[0].directory) or {})["identity"], facts)
    return directory
