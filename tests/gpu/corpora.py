"""Shards to measure on: agent-like and GRPO-like examples of random ids, built by dagpack in every layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from bench.forests import grow_forest

from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.packing import Forest
from dagpack_cli.pipeline import Execution, TokenizerChoice, build, pack

__all__ = ["LAYOUTS", "Recipe", "build_layouts"]

LAYOUTS = ("dag", "best-fit", "padded")
_GROWN_FOR = 8_192  # rows; families of forests have sizes of their own, and shorter ones are these, scaled down


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a corpus is made of; equal recipes, equal corpora.

    Attributes:
        family: of `tests.bench.forests`.
        seq_len: rows of its longest path and of its windows.
        rows: distinct pairs it has, about; whole trees, at least one.
        vocabulary: ids are drawn below it.
        seed: of everything that is drawn.
    """

    family: str
    seq_len: int
    rows: int
    vocabulary: int = 4_096
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.family}-{self.seq_len}"


def build_layouts(recipe: Recipe, folder: Path, layouts: tuple[str, ...] = LAYOUTS) -> dict[str, Path]:
    """Build a corpus and window it in every layout.

    Args:
        recipe: of the corpus.
        folder: where to put everything.
        layouts: which; the first is built, the others are packed from its trie.

    Returns:
        the output directory of every layout.
    """
    corpus = folder / recipe.name / "corpus"
    corpus.mkdir(parents=True)
    _write_examples(recipe, corpus / "examples.parquet")
    outs = {layout: folder / recipe.name / layout for layout in layouts}
    first, *others = layouts
    execution = Execution()
    build(
        corpus,
        outs[first],
        tokenizer=TokenizerChoice(spec="none"),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(),
        pack_options=PackOptions(seq_len=recipe.seq_len, layout=first),
        execution=execution,
    )
    for layout in others:
        options = PackOptions(seq_len=recipe.seq_len, layout=layout)
        pack(outs[first], outs[layout], pack_options=options, execution=execution)
    return outs


def _write_examples(recipe: Recipe, path: Path) -> None:
    """Write every path of a forest from a root to a leaf as an example, in an order that tells nothing."""
    grown_for = max(recipe.seq_len, _GROWN_FOR)
    forest = grow_forest(
        recipe.family, grown_for, recipe.seed, num_rows=max(recipe.rows * grown_for // recipe.seq_len, 1)
    )
    lengths = -(-forest.lengths * recipe.seq_len // grown_for)
    generator = np.random.default_rng([5, recipe.seed])
    tokens = generator.integers(0, recipe.vocabulary, int(lengths.sum()), dtype=np.int32)
    starts = np.cumsum(lengths) - lengths
    examples = [
        np.concatenate([tokens[starts[node] : starts[node] + lengths[node]] for node in _path(forest, leaf)])
        for leaf in generator.permutation(forest.leaves).tolist()
    ]
    cut = [example[: recipe.seq_len + 1] for example in examples if len(example) > 1]
    offsets = np.concatenate(([0], np.cumsum([len(example) for example in cut])))
    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(cut)))
    pq.write_table(pa.table({"input_ids": column}), path)


def _path(forest: Forest, leaf: int) -> npt.NDArray[np.int64]:
    """Return the nodes from a root down to a leaf."""
    nodes = [leaf]
    while (parent := int(forest.parents[nodes[-1]])) >= 0:
        nodes.append(parent)
    return np.array(nodes[::-1])
