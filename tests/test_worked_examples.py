"""Worked examples: small corpora whose windows are known to the last number, and failures others have met."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import UNMERGED, Built, Window, built
from oracle import Example, Tokens

from dagpack_cli.errors import DataError, NoInputError
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build

LAYOUTS = ("dag", "walk", *UNMERGED)


def whole(*sequences: Iterable[int]) -> list[Example]:
    """Return examples in which every pair trains."""
    return [Example(tokens, frozenset(range(len(tokens)))) for tokens in map(tuple, sequences)]


def episodes(*runs: str) -> dict[str, str]:
    """Return a file of transitions; each run names its states."""
    records = [{"episode": at, "state": state, "action": None} for at, run in enumerate(runs) for state in run.split()]
    return {"game.jsonl": "".join(json.dumps(record) + "\n" for record in records)}


def check_columns(window: Window, **columns: Sequence[Any]) -> None:
    """Check fields of a window's rows."""
    for name, expected in columns.items():
        assert window.column(name) == list(expected), name


def ended(build: Built) -> Counter[Tokens]:
    """Return the sequences that end in the windows, from the shards alone."""
    found: Counter[Tokens] = Counter()
    for window in build.windows["train"]:
        ending = window.column("count")
        for row in window.rows:
            if row.parent >= 0:
                ending[row.parent] -= row.count
        for path, count in zip(window.paths(), ending, strict=True):
            found[path] += count
    return +found


# --- packed, second seed ----------------------------------------------------------------------------

A, B, C = (0, 99, 100, 1), (0, 101, 1), (0, 102, 103, 104, 1)
SEED_CORPORA: list[tuple[list[Example] | dict[str, str], str]] = [
    (whole(A, B, C), "none"),
    ({"a.txt": "ab", "b.txt": "c", "c.txt": "def"}, "bytes"),
]


@pytest.mark.parametrize(("corpus", "tokenizer"), SEED_CORPORA, ids=["ids", "text files"])
@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_packed_second_seed(corpus: list[Example] | dict[str, str], tokenizer: str, shard_format: Any) -> None:
    """Three documents in two windows of six: next-fit in input order, positions from 0 in each."""
    pack = PackOptions(seq_len=6, layout="packed", shard_format=shard_format)
    with built(corpus, pack, tokenizer=tokenizer) as build:
        first, second = build.windows["train"]
        check_columns(
            first,
            input=[0, 99, 100, 0, 101],
            target=[99, 100, 1, 101, 1],
            depth=[0, 1, 2, 0, 1],
            parent=[-1, 0, 1, -1, 3],
            segment=[0, 0, 0, 1, 1],
            count=[1] * 5,
            weight=[1.0] * 5,
            owned=[True] * 5,
        )
        check_columns(
            second,
            input=[0, 102, 103, 104],
            target=[102, 103, 104, 1],
            depth=[0, 1, 2, 3],
            parent=[-1, 0, 1, 2],
            segment=[2, 2, 2, 2],
            count=[1] * 4,
            weight=[1.0] * 4,
            owned=[True] * 4,
        )
        assert (first.num_supervised, first.weight_sum, first.attention_edges) == (5, 5.0, 9)
        assert (second.num_supervised, second.weight_sum, second.attention_edges) == (4, 4.0, 10)


def test_packed_second_seed_as_padded_arrays() -> None:
    """An NPY shard is 2 x 6: pads are -1 in inputs, targets, segments and parents, and 0 elsewhere."""
    with built(whole(A, B, C), PackOptions(seq_len=6, layout="packed", shard_format="npy")) as build:
        folder = build.result.path / "shards" / "train-00000"
        arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    assert arrays["inputs"].tolist() == [[0, 99, 100, 0, 101, -1], [0, 102, 103, 104, -1, -1]]
    assert arrays["targets"].tolist() == [[99, 100, 1, 101, 1, -1], [102, 103, 104, 1, -1, -1]]
    assert arrays["segments"].tolist() == [[0, 0, 0, 1, 1, -1], [2, 2, 2, 2, -1, -1]]
    assert arrays["depths"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
    assert arrays["parents"].tolist() == [[-1, 0, 1, -1, 3, -1], [-1, 0, 1, 2, -1, -1]]
    assert arrays["counts"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]
    assert arrays["weights"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]
    assert arrays["owned"].tolist() == [[True] * 5 + [False], [True] * 4 + [False] * 2]
    assert arrays["lengths"].tolist() == [5, 4]
    assert arrays["inputs"].size == 12
    assert int((arrays["targets"] >= 0).sum()) == 9


# --- branches and games -----------------------------------------------------------------------------


def test_branch_with_multiplicity() -> None:
    """The last common token stands once a continuation, and counts say how many examples cross each row."""
    with built(whole((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5)), PackOptions(seq_len=6)) as build:
        (window,) = build.windows["train"]
        check_columns(
            window,
            input=[1, 2, 3, 3],
            target=[2, 3, 4, 5],
            depth=[0, 1, 2, 2],
            parent=[-1, 0, 1, 1],
            count=[3, 3, 1, 2],
            weight=[3.0, 3.0, 1.0, 2.0],
            segment=[0] * 4,
            owned=[True] * 4,
        )
        assert build.ledger["total"]["merged"] == 5


@pytest.mark.parametrize("merge", ["prefix", "state"])
@pytest.mark.parametrize("layout", ["dag", "walk"])
def test_game_first_seed(merge: Any, layout: str) -> None:
    """Three runs of a game are five transitions; here the graph is the tree."""
    game = episodes("s1 s2 s3 s4", "s1 s2 s3 s5", "s1 s6")
    pack, trie = PackOptions(seq_len=6, layout=layout), TrieOptions(merge=merge)
    with built(game, pack, trie, tokenizer="symbols") as build:
        (window,) = build.windows["train"]
        check_columns(
            window,
            input=[0, 1, 2, 2, 0],
            target=[1, 2, 3, 4, 5],
            depth=[0, 1, 2, 2, 0],
            parent=[-1, 0, 1, 1, -1],
            count=[2, 2, 1, 1, 1],
        )


def test_game_under_a_virtual_root() -> None:
    """Joined under one root each start sits at depth 1, and an example of n states has n pairs."""
    game = episodes("s1 s2", "s3 s2", "s3")
    with built(game, PackOptions(seq_len=6), TrieOptions(virtual_root="auto"), tokenizer="symbols") as build:
        (window,) = build.windows["train"]
        check_columns(
            window,
            input=[3, 0, 3, 2],
            target=[0, 1, 2, 1],
            depth=[0, 1, 0, 1],
            parent=[-1, 0, -1, 2],
            count=[1, 1, 2, 1],
        )
        assert build.ledger["total"]["pairs"]["in"] == 5
        assert build.ledger["total"]["examples"]["single_token"] == 0
        assert build.result.manifest.vocab_size == 4


def test_a_cycle_is_one_row_a_transition() -> None:
    """Under merge state a loop is trained once, with all its crossings; what leads back is a leaf.

    The tree of b comes first in its window, for it has more rows.
    """
    with built(
        episodes("a b a b c", "b b a"), PackOptions(seq_len=4), TrieOptions(merge="state"), tokenizer="symbols"
    ) as build:
        (window,) = build.windows["train"]
        check_columns(
            window,
            input=[1, 1, 1, 0],
            target=[0, 1, 2, 1],
            depth=[0, 0, 0, 0],
            parent=[-1, -1, -1, -1],
            segment=[1, 1, 1, 0],
            count=[2, 1, 1, 2],
        )


def test_a_state_hangs_below_whoever_was_reached_first() -> None:
    """Of two parents at equal depth the one reached earlier carries the subtree, though its id is larger."""
    with built(whole((0, 4, 5, 6), (1, 2, 5, 6)), PackOptions(seq_len=4), TrieOptions(merge="state")) as build:
        rows = {(row.input, row.target): row for window in build.windows["train"] for row in window.rows if row.owned}
    assert {pair: (row.depth, row.count) for pair, row in rows.items()} == {
        (0, 4): (0, 1),
        (4, 5): (1, 1),
        (5, 6): (2, 2),
        (1, 2): (0, 1),
        (2, 5): (1, 1),
    }
    assert rows[5, 6].segment == rows[4, 5].segment != rows[2, 5].segment


@pytest.mark.parametrize("on_long", ["split", "truncate"])
@pytest.mark.parametrize("prune", [True, False])
def test_a_graph_deeper_than_a_window(on_long: Any, prune: bool) -> None:
    """The breadth-first tree is cut where its paths are too long, wherever runs begin and end."""
    examples = whole((1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 7))
    pack = PackOptions(seq_len=2, on_long=on_long, prune=prune)
    with built(examples, pack, TrieOptions(merge="state")) as build:
        found = sorted(
            (row.input, row.target, row.depth, row.count)
            for window in build.windows["train"]
            for row in window.rows
            if row.owned
        )
        pairs = build.ledger["total"]["pairs"]
    upper = [(1, 2, 0, 3), (2, 3, 1, 2), (2, 7, 1, 1)]
    lower = [(3, 4, 0, 2), (4, 5, 1, 1), (4, 6, 1, 1)]
    assert found == (upper + lower if on_long == "split" else upper)
    assert (pairs["in"], pairs["truncated"], pairs["pruned"]) == (10, 0 if on_long == "split" else 4, 0)


@pytest.mark.parametrize("prune", [True, False])
def test_a_graph_of_three_runs_cut_above_the_second(prune: bool) -> None:
    """Runs that lie wholly below what is truncated leave nothing behind, not even where a deeper run follows."""
    examples = whole((1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 7))
    pack = PackOptions(seq_len=1, on_long="truncate", prune=prune)
    with built(examples, pack, TrieOptions(merge="state")) as build:
        (window,) = build.windows["train"]
        check_columns(window, input=[1], target=[2], count=[3])
        assert build.ledger["total"]["pairs"]["truncated"] == 7


def test_a_dropped_transition_ends_the_example_there() -> None:
    """What follows starts a new root, and the pair is counted as dropped."""
    records = [{"episode": 0, "state": state, "action": action} for state, action in zip("abcd", "wxRy", strict=True)]
    corpus = {"game.jsonl": "".join(json.dumps(record) + "\n" for record in records)}
    ingest = IngestOptions(drop_transition=("action=R",))
    with built(corpus, PackOptions(seq_len=4), ingest=ingest, tokenizer="symbols") as build:
        (window,) = build.windows["train"]
        assert sorted(zip(window.column("parent"), window.column("depth"), strict=True)) == [(-1, 0), (-1, 0)]
        pairs = build.ledger["total"]["pairs"]
        assert (pairs["in"], pairs["in_windows"], pairs["dropped"]) == (3, 2, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_same_tokens_other_supervision(turned: bool) -> None:
    """Tokens 4 to 6 train in one row and are context in another: their weight is the first's, not 0 and not 2."""
    tokens = tuple(range(7))
    examples = [Example(tokens, frozenset({4, 5, 6})), Example((*tokens, 7), frozenset({7}))]
    with built(examples[::-1] if turned else examples, PackOptions(seq_len=8)) as build:
        (window,) = build.windows["train"]
        check_columns(window, weight=[0, 0, 0, 1, 1, 1, 1], count=[2] * 6 + [1], owned=[True] * 7)
        assert window.num_supervised == 4


# --- from the field ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_small_documents_are_neither_lost_nor_repeated(layout: str) -> None:
    """2,500 documents of three unique ids come out once each, and workers change no window."""
    examples = whole(*((3 * at, 3 * at + 1, 3 * at + 2) for at in range(2500)))
    with built(examples, PackOptions(seq_len=7, layout=layout)) as one:
        targets = Counter(target for window in one.windows["train"] for target in window.column("target"))
        if layout == "walk":  # it cuts through a document and replays its first row, untrained
            trained = [row for window in one.windows["train"] for row in window.rows if row.count]
            targets = Counter(row.target for row in trained)
        else:
            assert len(one.windows["train"]) == (2500 if layout == "padded" else 834)
        assert targets == Counter(at for at in range(7500) if at % 3)
    with built(examples, PackOptions(seq_len=7, layout=layout), execution=Execution(workers=2)) as other:
        assert other.windows == one.windows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_documents_in_the_middle(layout: str) -> None:
    """An empty document shifts nothing: the others are split where they should be, and it is counted."""
    pack = PackOptions(seq_len=4, layout=layout, on_long="split")
    with built(whole(range(1, 10), (), range(20, 25)), pack) as build:
        assert ended(build) == Counter([(1, 2, 3, 4, 5), (5, 6, 7, 8, 9), (20, 21, 22, 23, 24)])
        assert build.ledger["total"]["examples"]["empty"] == 1
        assert [row["status"] for row in build.provenance] == ["kept", "empty", "kept"]
        assert [len(row["windows"]) for row in build.provenance] == [2, 0, 1]
        assert [row["num_tokens"] for row in build.provenance] == [9, 0, 5]


@pytest.mark.parametrize(
    "files",
    [{"a.jsonl": '{"input_ids": []}\n' * 3}, {}, {"picture.bin": "\x00\x01\x02"}],
    ids=["only empty documents", "an empty folder", "nothing recognised"],
)
def test_nothing_to_pack(tmp_path: Path, files: dict[str, str]) -> None:
    """Without a pair to train there is an error of its own, and nothing is published."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, text in files.items():
        (corpus / name).write_text(text)
    with pytest.raises(NoInputError) as caught:
        build(
            corpus,
            tmp_path / "out",
            tokenizer=TokenizerChoice(spec="none"),
            ingest_options=IngestOptions(),
            trie_options=TrieOptions(),
            pack_options=PackOptions(),
            execution=Execution(),
        )
    assert caught.value.exit_code == 66
    assert "corpus" in str(caught.value)
    assert not (tmp_path / "out" / "CURRENT").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("on_long", "sequences", "lost"),
    [
        ("split", [range(11), range(10, 13), range(20, 31)], {}),
        ("truncate", [range(11), range(20, 31)], {"truncated": 2}),
        ("drop", [range(20, 31)], {"dropped": 12}),
    ],
)
def test_each_policy_for_a_long_document(
    layout: str, on_long: Any, sequences: list[range], lost: dict[str, int]
) -> None:
    """Of 13 and 11 tokens in windows of ten only the first is too long, and the ledger says what became of it."""
    with built(whole(range(13), range(20, 31)), PackOptions(seq_len=10, layout=layout, on_long=on_long)) as build:
        assert ended(build) == Counter(map(tuple, sequences))
        pairs = build.ledger["total"]["pairs"]
        expected = {"in": 22, "pruned": 0, "truncated": 0, "dropped": 0} | lost
        assert pairs == expected | {"in_windows": 22 - sum(lost.values())}
        assert build.ledger["total"]["examples"]["dropped"] == (1 if on_long == "drop" else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_document_is_an_error_by_default(layout: str) -> None:
    """Nothing is cut unasked: the error says how many, the longest, the first, and a length that works."""
    with (
        pytest.raises(DataError, match=r"1 example is longer.* 12 pairs.*a\.jsonl:1") as caught,
        built(whole(range(13), range(20, 31)), PackOptions(seq_len=10, layout=layout)),
    ):
        pass
    assert "--seq-len 16" in caught.value.hint
    assert "--on-long split" in caught.value.hint


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_document_longer_than_two_windows(layout: str) -> None:
    """Pieces restart at depth 0 with the token at the cut, and every pair is kept."""
    examples = whole(*(range(100 * at, 100 * at + 4) for at in range(10)), range(5000, 5021))
    with built(examples, PackOptions(seq_len=8, layout=layout, on_long="split")) as build:
        found = ended(build)
        assert found == Counter(
            [
                *(tuple(range(100 * at, 100 * at + 4)) for at in range(10)),
                tuple(range(5000, 5009)),
                tuple(range(5008, 5017)),
                tuple(range(5016, 5021)),
            ]
        )
        assert all(row.depth < 8 for window in build.windows["train"] for row in window.rows)
        assert build.ledger["total"]["pairs"]["in_windows"] == 50


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("virtual_root", [None, "9"])
def test_exactly_a_window(layout: str, virtual_root: str | None) -> None:
    """One token more than the window fills it; two more are too long; a virtual root takes one of them."""
    fitting = 9 if virtual_root is None else 8
    trie, pack = TrieOptions(virtual_root=virtual_root), PackOptions(seq_len=8, layout=layout)
    for length in (fitting - 1, fitting):
        with built(whole(range(length)), pack, trie) as build:
            (window,) = build.windows["train"]
            assert len(window.rows) == length - (virtual_root is None)
            assert window.num_supervised == len(window.rows)
    with pytest.raises(DataError, match="9 pairs"), built(whole(range(fitting + 1)), pack, trie):
        pass


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_of_one_token(layout: str) -> None:
    """They have no pair: counted in their own place, and alone they are nothing to train."""
    ones = [(at,) for at in range(5)]
    with built(whole(*ones, (1, 2)), PackOptions(seq_len=4, layout=layout)) as build:
        examples = build.ledger["total"]["examples"]
        assert examples == {"in": 6, "kept": 1, "empty": 0, "single_token": 5, "dropped": 0}
        assert ended(build) == Counter([(1, 2)])
    with pytest.raises(NoInputError), built(whole(*ones), PackOptions(seq_len=4, layout=layout)):
        pass


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_token_documents_have_a_pair_under_a_virtual_root(layout: str) -> None:
    """The root and the token are a pair; an empty document still has none."""
    pack = PackOptions(seq_len=4, layout=layout)
    with built(whole((3,), (3,), (), (4, 5)), pack, TrieOptions(virtual_root="7")) as build:
        assert ended(build) == Counter([(7, 3), (7, 3), (7, 4, 5)])
        assert build.ledger["total"]["examples"]["empty"] == 1
        assert build.ledger["total"]["pairs"]["in"] == 4


@pytest.mark.parametrize("prune", [True, False])
def test_a_strict_prefix_and_exact_duplicates(prune: bool) -> None:
    """Three documents can be told apart by counts, and nothing ends a document but its own tokens."""
    with built(whole((1, 2, 3), (1, 2, 3, 4), (1, 2, 3)), PackOptions(seq_len=8, prune=prune)) as build:
        (window,) = build.windows["train"]
        check_columns(window, input=[1, 2, 3], target=[2, 3, 4], count=[3, 3, 1], weight=[3.0, 3.0, 1.0])
        assert ended(build) == Counter({(1, 2, 3): 2, (1, 2, 3, 4): 1})


TRUNK = tuple(range(6))
BRANCHES = [(*TRUNK, *(100 + 10 * branch + at for at in range(5))) for branch in range(8)]


def test_a_tree_larger_than_a_window_in_exact_windows() -> None:
    """Eight branches of five on a trunk of six: each window has the trunk, with the share of its own examples."""
    with built(whole(*BRANCHES), PackOptions(seq_len=16)) as build:
        windows = build.windows["train"]
        assert [len(window.rows) for window in windows] == [15] * 4
        for window in windows:
            check_columns(window, count=[2] * 5 + [1] * 10, parent=[-1, *range(9), 4, *range(10, 14)])
        owned = [window.column("owned") for window in windows]
        assert owned == [[True] * 15] + [[False] * 5 + [True] * 10] * 3
        assert ended(build) == Counter(BRANCHES)


def test_a_tree_larger_than_a_window_in_a_walk() -> None:
    """The walk repeats the trunk as context with weight 0, and trains every row once."""
    with built(whole(*BRANCHES), PackOptions(seq_len=16, layout="walk")) as build:
        windows = build.windows["train"]
        trained = Counter((row.input, row.target) for window in windows for row in window.rows if row.weight)
        assert len(trained) == 45
        assert set(trained.values()) == {1}
        assert all(len(window.rows) == 16 for window in windows[:-1])
        check_columns(windows[0], weight=[8.0] * 5 + [1.0] * 11)
        check_columns(windows[1], weight=[0.0] * 6 + [1.0] * 10, owned=[False] * 6 + [True] * 10)


@pytest.mark.parametrize("layout", ["dag", "walk"])
def test_a_long_path_is_not_a_large_tree(layout: str) -> None:
    """A path longer than the window follows the policy; a tree larger than the window needs none."""
    examples = whole(*BRANCHES, (*TRUNK, *range(200, 215)))
    with pytest.raises(DataError, match="20 pairs"), built(examples, PackOptions(seq_len=16, layout=layout)):
        pass
    with built(examples, PackOptions(seq_len=16, layout=layout, on_long="split")) as build:
        pieces = [(*TRUNK, *range(200, 211)), tuple(range(210, 215))]
        if layout == "dag":
            assert ended(build) == Counter([*BRANCHES, *pieces])
        assert build.ledger["total"]["pairs"]["in_windows"] == 100


def test_a_chain_of_200000_tokens() -> None:
    """Depth costs no recursion: one chain is cut into windows that are full but the last."""
    with built(whole([7] * 200_000), PackOptions(seq_len=4096, on_long="split")) as build:
        lengths = [len(window.rows) for window in build.windows["train"]]
        assert sorted(lengths, reverse=True) == [4096] * 48 + [199_999 - 48 * 4096]
        assert build.ledger["total"]["pairs"]["in_windows"] == 199_999


def test_an_alphabet_of_one_id() -> None:
    """Each example one longer than the last is one chain, whose counts go down by one."""
    with built(whole(*([5] * length for length in range(1, 301))), PackOptions(seq_len=300)) as build:
        (window,) = build.windows["train"]
        check_columns(window, count=range(299, 0, -1), depth=range(299))


@pytest.mark.parametrize("layout", ["dag", "packed"])
def test_many_tiny_documents_in_one_window(layout: str) -> None:
    """4,096 documents of two tokens all fit into one window of 8,192."""
    examples = whole(*((2 * at, 2 * at + 1) for at in range(4096)))
    with built(examples, PackOptions(seq_len=8192, layout=layout)) as build:
        (window,) = build.windows["train"]
        assert len(window.rows) == 4096
        assert window.column("segment") == list(range(4096))
