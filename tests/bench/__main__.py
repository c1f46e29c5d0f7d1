"""Print ratios against named alternatives: ``python -m tests.bench [--scale X] [SECTION ...]``.

How many flipped bits `dagpack verify` finds: ``python -m tests.bench flips``.

On a corpus of one's own: ``python -m tests.bench real CORPUS``, see `bench_real`. Builds that are killed again
and again: ``python -m tests.bench crashes``. Corpora beyond memory: ``python -m tests.bench memory``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dagpack_cli.trie import open_trie

from . import (
    bench_attention,
    bench_crashes,
    bench_flips,
    bench_memory,
    bench_packers,
    bench_process,
    bench_real,
    bench_rendering,
    builders,
    families,
    ours,
    peers,
)
from .families import Corpus
from .forests import FAMILIES
from .measure import in_turn, print_table

_SECTIONS = ("structure", "write", "packers", "masks", "rendering", "attention")
_TOKENS = 30_000_000  # of a corpus, at scale 1
_NO_TRL = "no trl"


def _corpora(kinds: dict[str, Any], names: tuple[str, ...], num_tokens: int) -> dict[str, Callable[[], Corpus]]:
    """Return how to make each corpus; a family's numbers do not depend on which others are made."""
    return {
        name: partial(kinds[name], np.random.default_rng([7, len(name), ord(name[0])]), num_tokens) for name in names
    }


def _warm() -> None:
    """Compile every kernel, for tokens in a memory map, before anything is measured."""
    with TemporaryDirectory() as folder:
        small = families.map_corpus(families.agent(np.random.default_rng(0), 200_000), Path(folder))
        for layout in ("dag", "best-fit"):
            _merge_and_write(small, layout, Path(folder, layout))


def structure(scale: float, repeats: int, folder: Path) -> None:
    """Print what it costs to turn sequences on disk into a trie with weights."""
    rows = []
    for name, make in _corpora(families.STRUCTURE, tuple(families.STRUCTURE), int(_TOKENS * scale)).items():
        corpus = families.map_corpus(make(), folder / name)
        sides: dict[str, Callable[[], Any]] = {
            "numba": partial(ours.store_trie, corpus, "numba", folder / name / "numba"),
            "numpy": partial(ours.store_trie, corpus, "numpy", folder / name / "numpy"),
        }
        if peers.has_trl():
            sides["trl"] = partial(peers.pack_bfd, peers.sequences_dataset(corpus), corpus.seq_len)
        found = in_turn(sides, repeats)
        seconds, _ = found["numba"]
        distinct = open_trie(folder / name / "numba").offsets[-1]
        millions = len(corpus.tokens) / 1e6
        rows.append(
            (
                name,
                f"{corpus.num_sequences:,}",
                f"{millions:.1f} M",
                f"{distinct / 1e6:.1f} M",
                f"{millions / seconds / 1000:.2f}",
                f"{seconds / found['numpy'][0]:.3f}",
                f"{seconds / found['trl'][0]:.3f}" if "trl" in found else _NO_TRL,
            )
        )
        shutil.rmtree(folder / name)
    print_table(
        "structure: sequences on disk -> trie with weights on disk (CPU; targets: at most 0.15 of TRL, "
        "at least 1 G tokens/s agent, 0.4 without sharing)",
        ("family", "sequences", "tokens", "distinct", "G tokens/s", "of numpy's CPU", "of TRL bfd's CPU"),
        rows,
    )


def _merge_and_write(corpus: Corpus, layout: Any, folder: Path) -> Any:
    shutil.rmtree(folder, ignore_errors=True)
    ends = ours.store_trie(corpus, "numba", folder.parent / "trie")
    return ours.write(open_trie(folder.parent / "trie"), ends, corpus.seq_len, layout, folder, "numba")


def _pack_and_write(dataset: Any, seq_len: int, path: Path) -> Any:
    packed = peers.pack_bfd(dataset, seq_len)
    peers.write_dataset(packed, path)
    return packed


def write(scale: float, repeats: int, folder: Path) -> None:
    """Print what it costs to merge, pack and write every column, and how full the windows are."""
    rows = []
    for name, make in _corpora(families.STRUCTURE, ("agent", "web", "chat"), int(_TOKENS * scale)).items():
        corpus = families.map_corpus(make(), folder / name)
        sides: dict[str, Callable[[], Any]] = {
            layout: partial(_merge_and_write, corpus, layout, folder / layout) for layout in ("dag", "best-fit")
        }
        if peers.has_trl():
            for peer, labels in (("trl", False), ("trl labels", True)):
                dataset = peers.sequences_dataset(corpus, labels=labels)
                sides[peer] = partial(_pack_and_write, dataset, corpus.seq_len, folder / "trl.parquet")
        found = in_turn(sides, repeats)
        for layout in ("dag", "best-fit"):
            seconds, report = found[layout]
            size = sum(path.stat().st_size for path in (folder / layout).iterdir())
            cells = [f"{name}, {layout}", f"{seconds:.2f} s"]
            cells += [f"{seconds / found[peer][0]:.2f}" if peer in found else _NO_TRL for peer in ("trl", "trl labels")]
            cells += [f"{report.num_windows:,}", f"{report.num_rows / report.num_windows / corpus.seq_len:.4f}"]
            cells += [f"{size / 1e6:.1f}"]
            if "trl" in found:
                windows = len(found["trl"][1])
                fill = len(corpus.tokens) / windows / corpus.seq_len
                cells += [f"{windows:,}", f"{fill:.4f}", f"{(folder / 'trl.parquet').stat().st_size / 1e6:.1f}"]
            else:
                cells += [_NO_TRL] * 3
            rows.append(tuple(cells))
        shutil.rmtree(folder / name)
    print_table(
        "merge + pack + write, eight columns, one thread, against TRL bfd + zstd Parquet (CPU; target: at most 1.0)",
        (
            "family, layout",
            "CPU",
            "of TRL",
            "of TRL with labels",
            "windows",
            "fill",
            "MB",
            "TRL: windows",
            "fill",
            "MB with labels",
        ),
        rows,
    )


def masks(repeats: int) -> None:
    """Print what a block mask costs, from the intervals and from all pairs."""
    print_table(
        "block masks on the CPU: from the intervals, and by create_block_mask (wall time, added peak memory)",
        ("rows", "ours, ms", "create_block_mask, ms", "faster", "ours, MB", "create_block_mask, MB"),
        builders.measure_builders((2_048, 8_192, 32_768), repeats),
    )


def main() -> None:
    """Run the sections that are asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(_SECTIONS)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the corpora's tokens and forests' nodes")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side; the median counts")
    parser.add_argument("--family", action="append", choices=FAMILIES, default=[], help="of packers; default: all")
    parser.add_argument("--seq-len", type=int, action="append", default=[], help="of packers; default: 2k to 128k")
    parser.add_argument("--polish", type=int, help="of packers: attempts a window; default: as the bound advises")
    apart = {
        "real": bench_real.main,
        "flips": bench_flips.main,
        "crashes": bench_crashes.main,
        "memory": bench_memory.main,
        "process": bench_process.main,
    }
    if sys.argv[1:] and sys.argv[1] in apart:
        apart[sys.argv[1]](sys.argv[2:])
        return
    given = parser.parse_args()
    if unknown := set(given.sections) - set(_SECTIONS):
        parser.error(f"no section {sorted(unknown)[0]}")
    sections = given.sections or _SECTIONS
    with TemporaryDirectory(prefix="dagpack-bench-") as temporary:
        folder = Path(temporary)
        if set(sections) & {"structure", "write"}:
            _warm()
        if "structure" in sections:
            structure(given.scale, given.repeats, folder)
        if "write" in sections:
            write(given.scale, given.repeats, folder)
        if "packers" in sections:
            seq_lens = given.seq_len or bench_packers.SEQ_LENS
            bench_packers.packers(given.scale, given.family, seq_lens, given.polish)
        if "masks" in sections:
            masks(given.repeats)
        if "rendering" in sections:
            bench_rendering.rendering(bench_rendering.small_tokenizer(), given.repeats)
        if "attention" in sections:
            bench_attention.attention((1_024, 2_048, 4_096, 8_192), given.repeats)


if __name__ == "__main__":
    main()
