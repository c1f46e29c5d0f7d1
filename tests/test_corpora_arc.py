"""Recordings of ARC-AGI-3: steps, plays and episodes; what each of the four encodings trains."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagpack_cli.corpora import discover
from dagpack_cli.corpora.files.sources import Source, stat_source
from dagpack_cli.corpora.formats import choose_tokenizer, kind_of, recognise
from dagpack_cli.corpora.games import arc_agi_3
from dagpack_cli.corpora.games.arc_steps import is_step
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Ids, OnBad, Record, Values, raise_bad
from dagpack_cli.errors import DagpackError, DataError, MismatchError, UsageError
from dagpack_cli.export import export_examples
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build
from dagpack_cli.tokenizing import read_symbols
from dagpack_cli.tokenizing.grid import GridTokenizer
from dagpack_cli.tokenizing.symbols import SYMBOLS_NAME
from dagpack_cli.verify import verify_generation

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
GAMES = FIXTURES / "arc-agi-3"
REAL = Path(__file__).resolve().parents[2] / "shared" / "real" / "arc-agi-3"
real_files = pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")

S0, S1, S2, S3 = ["000", "005"], ["050", "000"], ["500", "000"], ["000", "500"]
DEAD, L1 = ["888", "888"], ["333", "335"]


def records(path: Path, on_bad: OnBad = raise_bad, **options: Any) -> list[Record]:
    """Return the records of one recording."""
    return list(arc_agi_3.read(stat_source(path, path.name, "arc-agi-3"), ReadOptions(**options), on_bad))


def step(action: Any = "ACTION1", frame: Any = ((0,),), **fields: Any) -> dict[str, Any]:
    """Return one line of a recording; ``frame`` is the settled grid, None for no frame."""
    data = {"game_id": "g-1", "state": "NOT_FINISHED", "levels_completed": 0, "guid": "p", "full_reset": False}
    data |= {"action_input": {"id": action, "data": {}}} | fields
    if frame is not None:
        data["frame"] = [[list(row) for row in frame]]
    return {"timestamp": "t", "data": data}


def written(path: Path, rows: list[Any]) -> Path:
    """Write rows, or text that is no JSON, one a line."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def values(record: Record) -> list[bytes]:
    """Return the JSON values of an example of symbols."""
    assert isinstance(record.body, Values)
    return list(record.body.values)


def nodes(record: Record) -> list[tuple[Any, list[str], int | None, str]]:
    """Return action, frame, level and status of every node."""
    found = []
    for value in map(json.loads, values(record)):
        state = value["state"]
        found.append((value.get("action"), state["frame"], state.get("level"), state["status"]))
    return found


def test_agents_of_2025() -> None:
    """Int ids and a score; the last grid is the state; a full reset starts an episode; the scorecard is no step."""
    first, second = records(GAMES / "agents-2025.recording.jsonl")
    click = {"id": "ACTION6", "x": 2, "y": 1}
    assert nodes(first) == [
        ("RESET", S0, 0, "NOT_FINISHED"),
        (click, S1, 0, "NOT_FINISHED"),
        ("ACTION1", DEAD, 0, "GAME_OVER"),
        ("RESET", S0, 0, "NOT_FINISHED"),
        ("ACTION2", L1, 1, "NOT_FINISHED"),
    ]
    assert nodes(second) == [("RESET", S0, 0, "NOT_FINISHED"), ("ACTION3", S3, 0, "NOT_FINISHED")]
    name = "agents-2025.recording.jsonl#g1"
    assert [(record.id, record.group, record.place.line) for record in (first, second)] == [
        (name, "g1", 1),
        (f"{name}#2", "g1", 6),
    ]


def test_toolkit() -> None:
    """String ids; two plays share their first nodes; a step without a frame cuts, and both its transitions count."""
    (first,) = records(GAMES / "toolkit-1.jsonl")
    before, after = records(GAMES / "toolkit-2.jsonl")
    assert nodes(first)[-2:] == [
        ({"id": "ACTION6", "x": 0, "y": 1}, L1, 1, "NOT_FINISHED"),
        ("ACTION7", S2, 2, "WIN"),
    ]
    assert values(before) == values(first)[:2]
    assert [(part.start, part.end, part.dropped, part.id) for part in (before, after)] == [
        (0, 2, 2, "toolkit-2.jsonl#c2[0:2]"),
        (2, 4, 0, "toolkit-2.jsonl#c2[2:4]"),
    ]
    assert nodes(after) == [("ACTION2", S3, 0, "NOT_FINISHED"), ("ACTION2", DEAD, 0, "GAME_OVER")]


def test_people() -> None:
    """Int and string ids mixed; steps without a guid belong to the play that goes on."""
    before, after = records(GAMES / "people.jsonl")
    assert [node[0] for node in nodes(before) + nodes(after)] == ["RESET", "ACTION1", "RESET", "ACTION1"]
    assert (before.group, before.dropped, after.group, after.dropped) == ("p1", 2, "p1", 0)


@pytest.mark.parametrize(
    ("missing", "dropped", "parts"),
    [
        ([0], [1], [(0, 4)]),
        ([0, 1], [2], [(0, 3)]),
        ([2], [2, 0], [(0, 2), (2, 4)]),
        ([2, 3], [3, 0], [(0, 2), (2, 3)]),
        ([4], [1], [(0, 4)]),
        ([0, 2, 4], [3, 1], [(0, 1), (1, 2)]),
    ],
)
def test_every_transition_is_kept_or_counted(
    missing: list[int], dropped: list[int], parts: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Of five steps with some unseen, pairs in examples and dropped ones make four, wherever the gaps are."""
    rows = [step(frame=None if number in missing else [[number]], full_reset=number == 0) for number in range(5)]
    found = records(written(tmp_path / "a.jsonl", rows))
    assert [record.dropped for record in found] == dropped
    assert [(record.start, record.end) for record in found] == parts
    assert sum(record.end - record.start - 1 + record.dropped for record in found) == 4


def test_a_guid_that_comes_late(tmp_path: Path) -> None:
    """It names the play that has none yet; where the game starts anew it is that of the next play."""
    rows = [step(guid=None), step(guid="p"), step(guid="q", full_reset=True), step(guid=None)]
    found = records(written(tmp_path / "a.jsonl", rows))
    assert [(record.group, record.end) for record in found] == [("p", 2), ("q", 2)]
    rows = [step(guid=None), step(guid="q", full_reset=True)]
    assert [record.group for record in records(written(tmp_path / "b.jsonl", rows))] == [None, "q"]


def test_plays_may_interleave(tmp_path: Path) -> None:
    """Lines of several plays and games in one file are told apart by game and guid."""
    rows = []
    for number in range(3):
        for game in ("g-1", "g-2"):
            rows += [step(frame=[[number]], game_id=game, guid=guid) for guid in ("p", "q")]
    found = records(written(tmp_path / "a.jsonl", rows))
    assert [record.id for record in found] == [f"a.jsonl#{guid}" for guid in ("p", "q") * 2]
    assert all([node[1] for node in nodes(record)] == [["0"], ["1"], ["2"]] for record in found)


@pytest.mark.parametrize("field", [{"game_id": "g-2"}, {"levels_completed": 1}, {"state": "WIN"}, {"score": 3}])
def test_what_makes_a_state(field: dict[str, Any], tmp_path: Path) -> None:
    """Equal frames of two games, levels or statuses are two states; what else a step says makes no difference."""
    rows = [step(guid="1"), step(guid="2", available_actions=[1], win_levels=9), step(guid="3", **field)]
    first, second, third = (values(record)[0] for record in records(written(tmp_path / "a.jsonl", rows)))
    assert first == second
    assert (first == third) == ("score" in field)  # levels_completed has the word where both are there


def test_the_score_is_the_level(tmp_path: Path) -> None:
    """A state is the same state whichever recorder wrote it."""
    old = step(guid="1", score=2)
    del old["data"]["levels_completed"]
    first, second = records(written(tmp_path / "a.jsonl", [old, step(guid="2", levels_completed=2)]))
    assert first.body == second.body


def test_policy_in_symbols() -> None:
    """State, action, state ...: the actions alone are supervised, and are one symbol wherever they are taken."""
    first, _ = records(GAMES / "agents-2025.recording.jsonl", predict="action")
    assert isinstance(first.body, Values)
    assert first.body.runs is not None
    found = [json.loads(value) for value in first.body.values]
    assert [value.get("action") for value in found] == [
        None,
        {"id": "ACTION6", "x": 2, "y": 1},
        None,
        "ACTION1",
        None,
        "RESET",
        None,
        "ACTION2",
        None,
    ]
    assert [value["state"]["frame"] for value in found[::2]] == [S0, S1, DEAD, S0, L1]
    assert found[0] == found[6]
    assert first.body.runs.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def spelled(record: Record) -> tuple[str, str]:
    """Return a grid example as text, and what of it is supervised."""
    assert isinstance(record.body, Ids)
    tokenizer, ids = GridTokenizer(), record.body.ids
    trained = "|".join(tokenizer.decode(ids[start:end]) for start, end in record.body.runs)
    return tokenizer.decode(ids), trained


def test_grid_tokens() -> None:
    """Both models read the same tokens; one is trained on the frames after the first, the other on the actions."""
    _, second = records(GAMES / "agents-2025.recording.jsonl", grid_tokens=True)
    text = "<bos><reset>000\n005\n<not-finished><action3>000\n500\n<not-finished><eos>"
    assert spelled(second) == (text, "000\n500\n<not-finished>")
    first, second = records(GAMES / "agents-2025.recording.jsonl", grid_tokens=True, predict="action")
    assert spelled(second) == (text, "<action3>")
    assert spelled(first)[1] == "<action6>(2)(1)|<action1>|<reset>|<action2>"


def test_steps_without_an_action(tmp_path: Path) -> None:
    """A step that names no action is a state after a state, and no target of a policy."""
    rows = [step(frame=[[0]], full_reset=True), step(frame=[[1]]), step(frame=[[2]], action_input=None)]
    path = written(tmp_path / "a.jsonl", rows)
    assert [node[0] for node in nodes(records(path)[0])] == ["ACTION1", "ACTION1", None]
    (policy,) = records(path, predict="action")
    assert isinstance(policy.body, Values)
    assert policy.body.runs is not None
    assert (len(policy.body.values), policy.body.runs.tolist()) == (4, [[1, 2]])
    (grid,) = records(path, predict="action", grid_tokens=True)
    assert spelled(grid)[1] == "<action1>"
    (grid,) = records(path, grid_tokens=True)
    assert spelled(grid)[1] == "1\n<not-finished>|2\n<not-finished>"


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        (("self",), [(0, 2), (2, 5)]),
        (("action=ACTION2",), [(0, 3), (3, 5)]),
        (('action={"id":"ACTION6","y":1,"x":2}',), [(0, 4), (4, 5)]),
        (("action=ACTION6",), [(0, 5)]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"predict": "action"}, {"grid_tokens": True}], ids=str)
def test_rules_drop_transitions(
    rules: tuple[Any, ...], parts: list[tuple[int, int]], options: dict[str, Any], tmp_path: Path
) -> None:
    """Drop rules see the state and the action as they are shown, in every encoding alike."""
    rows = [step(frame=[[0]]), step(frame=[[1]]), step(frame=[[1]]), step("ACTION2", [[2]])]
    rows.append(step(frame=[[3]], action_input={"id": 6, "data": {"x": 2, "y": 1}}))
    found = records(written(tmp_path / "a.jsonl", rows), drop_rules=rules, **options)
    assert [(record.start, record.end) for record in found] == parts
    assert sum(record.dropped for record in found) == len(parts) - 1
    assert len({record.id for record in found}) == len(parts)


@pytest.mark.parametrize("broken", ['{"timestamp": "t", "dat', json.dumps({"data": {"game_id": "g-1"}}), "[]"])
def test_nothing_is_joined_across_a_bad_record(broken: str, tmp_path: Path) -> None:
    """What follows a record that cannot be read is no successor of what stands before it."""
    rows = [step(frame=[[0]]), step(frame=[[1]]), broken, step(frame=[[2]]), step(frame=[[3]])]
    bad = BadRecords()
    found = records(written(tmp_path / "a.jsonl", rows), bad)
    assert [[node[1] for node in nodes(record)] for record in found] == [[["0"], ["1"]], [["2"], ["3"]]]
    assert [where for where, _ in bad.first] == ["a.jsonl:3"]
    assert sum(record.dropped for record in found) == 0


def test_a_scorecard_anywhere_is_no_gap(tmp_path: Path) -> None:
    """Scorecards of either shape stand between steps without parting them."""
    cards = [{"g-1": {"total_plays": 1, "scores": []}}, {"card_id": "x", "score": 0}, {"environments": []}]
    rows = [step(), *({"timestamp": "t", "data": card} for card in cards), step()]
    (found,) = records(written(tmp_path / "a.jsonl", rows))
    assert (found.start, found.end) == (0, 2)


def test_after_the_end_only_a_reset(tmp_path: Path) -> None:
    """What is played after GAME_OVER without a reset is named; an action that changed nothing is not."""
    over = step(frame=[[9]], state="GAME_OVER")
    fine = [step(), over, step(frame=None, state="GAME_OVER"), step("RESET", [[1]])]
    assert len(records(written(tmp_path / "a.jsonl", fine))) == 2
    for after, num_bad, parts in (
        ([step(frame=[[1]]), step(frame=[[2]])], 1, [["0", "9"], ["2"]]),
        (["{", step(frame=[[2]])], 1, [["0", "9"], ["2"]]),  # what could not be read may have been the reset
        ([step(frame=[[2]], action_input=None)], 0, [["0", "9", "2"]]),
        ([step(frame=[[9]], state="GAME_OVER")], 0, [["0", "9", "9"]]),
    ):
        bad = BadRecords()
        found = records(written(tmp_path / "b.jsonl", [step(), over, *after]), bad)
        assert bad.count == num_bad
        assert [[node[1][0] for node in nodes(record)] for record in found] == parts


def test_lost_actions_are_refused(tmp_path: Path) -> None:
    """A play whose every action is 0 is refused as one; a play that only resets in full is not such a one."""
    bad = BadRecords()
    rows = [step(0, [[n]], full_reset=n == 0) for n in range(3)] + [step(frame=[[n]], guid="ok") for n in range(2)]
    (found,) = records(written(tmp_path / "a.jsonl", rows), bad)
    assert (found.group, bad.count) == ("ok", 1)
    assert "the 3 steps of this play all say action 0" in bad.first[0][1]
    rows = [step(0, [[0]], full_reset=True), step(0, [[0]], full_reset=True)]
    assert len(records(written(tmp_path / "b.jsonl", rows))) == 2
    assert len(records(written(tmp_path / "c.jsonl", [step(0)]))) == 1
    scored = [step(0, [[n]], score=0) for n in range(2)]  # of 2025: its ids were kept
    for row in scored:
        del row["data"]["levels_completed"]
    assert len(records(written(tmp_path / "d.jsonl", scored))) == 1
    with pytest.raises(DataError) as error:
        records(FIXTURES / "broken" / "arc-actions-lost.jsonl")
    words = error.value.hint.split("--format ")[1].split()
    options = ReadOptions(format=words[0], episode_field=words[2], state_field=words[4])
    assert words[1::2] == ["--episode-field", "--state-field"]
    (source,) = discover(FIXTURES / "broken" / "arc-actions-lost.jsonl", options=options).inputs
    assert source.format == "transitions"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"game_id": 3}, '"game_id" is 3'),
        ({"game_id": ""}, '"game_id" is ""'),
        ({"game_id": "\ud83d"}, "half of a surrogate pair"),
        ({"guid": [1]}, '"guid" is a list of 1'),
        ({"state": "PLAYING"}, '"state" is "PLAYING"; one of NOT_PLAYED'),
        ({"state": ["WIN"]}, '"state" is a list'),
        ({"levels_completed": -1}, '"levels_completed" is -1'),
        ({"levels_completed": True}, '"levels_completed" is true'),
        ({"levels_completed": 10**30}, '"levels_completed" is 1000'),
        ({"full_reset": 1}, '"full_reset" is 1'),
        ({"action_input": []}, '"action_input" is a list'),
        ({"action_input": {}}, '"action_input.id" is null'),
        ({"action_input": {"id": 8}}, '"action_input.id" is 8; RESET or ACTION1 to ACTION7, or 0 to 7'),
        ({"action_input": {"id": -1}}, '"action_input.id" is -1'),
        ({"action_input": {"id": True}}, '"action_input.id" is true'),
        ({"action_input": {"id": "action1"}}, '"action_input.id" is "action1"'),
        ({"action_input": {"id": 6}}, '"action_input.data.x" is null'),
        ({"action_input": {"id": 6, "data": {"x": 1, "y": 64}}}, '"action_input.data.y" is 64'),
        ({"action_input": {"id": 6, "data": {"x": 1.0, "y": 6}}}, '"action_input.data.x" is 1.0'),
        ({"frame": 3}, '"frame" is 3'),
        ({"frame": [3]}, "the last grid of the frame is 3"),
        ({"frame": [[]]}, "the last grid of the frame is a list of 0"),
        ({"frame": [[0]]}, "row 0 of the last grid is 0"),
        ({"frame": [[[]]]}, "row 0 of the last grid is a list of 0"),
        ({"frame": [[[0], [0, 1]]]}, "row 1 of the last grid is a list of 2"),
        ({"frame": [[[0] * 65]]}, "row 0 of the last grid is a list of 65"),
        ({"frame": [[[0]] * 65]}, "the last grid of the frame is a list of 65"),
        ({"frame": [[[16]]]}, "row 0 of the last grid holds 16"),
        ({"frame": [[[-1]]]}, "holds -1"),
        ({"frame": [[[True]]]}, "holds true"),
        ({"frame": [[[[0]]]]}, "holds a list of 1"),
        ({"frame": [[[1e400]]]}, "holds"),
        ({"frame": [[[float("nan")]]]}, "holds NaN"),
    ],
)
def test_refusals(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Whatever is wrong with a step is named with its line."""
    row = step()
    row["data"] |= fields
    path = written(tmp_path / "a.jsonl", [step(), row])
    with pytest.raises(DataError) as error:
        records(path)
    assert str(error.value).startswith("a.jsonl:2: ")
    assert reason in str(error.value)


def test_only_recordings_are_claimed() -> None:
    """Records of every other format's fixtures are not taken for steps, and every step is taken for one."""
    for path in sorted(FIXTURES.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                mine = path.parent.name in ("arc-agi-3", "grid-game") or path.name.startswith("arc-")
                mine = mine and is_step(row["data"])
                assert (recognise(row, ReadOptions()) == "arc-agi-3") == mine, path
    assert {source.format for source in discover(GAMES).inputs} == {"arc-agi-3"}
    assert not arc_agi_3.recognise({"data": {"game_id": "x", "frame": 3}}, ReadOptions())


def test_fields_that_are_named_win() -> None:
    """Who says where states are gets transitions of these; a field that is not there changes nothing."""
    named = ReadOptions(episode_field="data.guid", state_field="data.frame")
    assert {source.format for source in discover(GAMES / "toolkit-1.jsonl", options=named).inputs} == {"transitions"}
    other = ReadOptions(state_field="data.picture")
    assert {source.format for source in discover(GAMES, options=other).inputs} == {"arc-agi-3"}


def test_tokenizer_of_games() -> None:
    """Games are symbols, or cells where they are asked for; nothing else can then be read."""

    def source(format: str) -> Source:
        return Source(Path("a"), "a", 0, 0, 0, 0, format)

    assert kind_of("arc-agi-3") == "symbols"
    assert choose_tokenizer([source("arc-agi-3"), source("transitions")]) == "symbols"
    assert choose_tokenizer([source("arc-agi-3")], grid_tokens=True) == "grid"
    assert choose_tokenizer([source("arc-agi-3")], "grid", grid_tokens=True) == "grid"
    for formats, spec, grid, kind in (
        (["arc-agi-3", "transitions"], "auto", True, UsageError),
        (["text"], "auto", True, UsageError),
        (["arc-agi-3"], "grid", False, MismatchError),
        (["arc-agi-3"], "symbols", True, MismatchError),
        (["arc-agi-3"], "bytes", True, MismatchError),
    ):
        with pytest.raises(kind) as error:
            choose_tokenizer([source(name) for name in formats], spec, grid_tokens=grid)
        assert isinstance(error.value, DagpackError)
        assert error.value.advice


def test_damaged_recordings_never_crash(tmp_path: Path) -> None:
    """Cut, flipped and spliced recordings give records and bad records, in every encoding."""
    rng = random.Random(5)
    originals = [path.read_bytes() for path in sorted(GAMES.iterdir())]
    pieces = [b"null", b"[[[[", b'{"a":', b"1e999", b"NaN", b'"\\ud800"', b"\x00", b"\xff", b"9" * 40, b"[]", b"true"]
    for number in range(600):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            size = rng.choice([0, 1, 2, 9, 60])
            data[at : at + size] = rng.choice([b"", bytes([rng.randrange(256)]), rng.choice(pieces)])
        path = tmp_path / "a.jsonl"
        path.write_bytes(data)
        bad = BadRecords()
        options: dict[str, Any] = {"grid_tokens": number % 2 == 0, "predict": ("next-state", "action")[number // 2 % 2]}
        for record in records(path, bad, **options):
            assert record.end > record.start


def graph(folder: Path) -> tuple[int, int, int, int]:
    """Count, slowly and from the bare lines, pairs, distinct prefixes, transitions and states of whole plays."""
    prefixes, steps, states, pairs = set(), set(), set(), 0
    for path in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line)["data"] for line in path.read_text().splitlines()]
        rows = [row for row in rows if row.get("frame")]
        if len(rows) > 1 and all(row["action_input"]["id"] == 0 for row in rows):
            continue  # the recorder that loses actions
        walk: list[str] = []
        for row in rows:
            act = row["action_input"]
            name = f"ACTION{act['id']}".replace("ACTION0", "RESET") if isinstance(act["id"], int) else act["id"]
            where = [row["game_id"], row["frame"][-1], row["state"], row.get("levels_completed", row.get("score"))]
            states.add(json.dumps(where))
            walk.append(json.dumps([where, name, act["data"].get("x"), act["data"].get("y")]))
            if len(walk) > 1:
                pairs += 1
                prefixes.add(tuple(walk))
                steps.add(tuple(walk[-2:]))
    return pairs, len(prefixes), len(steps), len(states)


def built(folder: Path, out: Path, merge: str = "prefix", **ingest: Any) -> BuildResult:
    """Build recordings, and check that what was written verifies."""
    result = build(
        folder,
        out,
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(on_error="skip", **ingest),
        trie_options=TrieOptions(merge="state" if merge == "state" else "prefix"),
        pack_options=PackOptions(seq_len=512, prune=False),
        execution=Execution(),
    )
    assert verify_generation(result.path, result.manifest).failures == []
    return result


@pytest.mark.parametrize("predict", ["next-state", "action"])
@pytest.mark.parametrize("grid_tokens", [False, True])
def test_builds_give_the_games_back(predict: str, grid_tokens: bool, tmp_path: Path) -> None:
    """In every encoding a build holds the tokens and the targets of every episode, and what its ids mean."""
    options: dict[str, Any] = {"predict": predict, "grid_tokens": grid_tokens}
    result = built(GAMES, tmp_path / "out", **options)
    assert result.manifest.tokenizer["kind"] == ("grid" if grid_tokens else "symbols")
    given = [record for path in sorted(GAMES.iterdir()) for record in records(path, **options)]
    found = list(export_examples(result.path, result.manifest))
    assert len(found) == len(given) == 7
    for example, record in zip(found, given, strict=True):
        body = record.body
        if isinstance(body, Values):
            payloads = read_symbols(result.path / "tokenizer" / SYMBOLS_NAME)
            assert [payloads[token] for token in example["input_ids"]] == values(record)
        else:
            assert isinstance(body, Ids)
            assert example["input_ids"] == body.ids.tolist()
        trained = np.zeros(len(example["input_ids"]), dtype=bool)
        for start, end in [(0, len(trained))] if body.runs is None else body.runs:
            trained[start:end] = True
        assert (np.array(example["labels"])[1:] >= 0).tolist() == trained[1:].tolist()


def test_actions_are_no_states(tmp_path: Path) -> None:
    """Merged by state, an action would be one node wherever it is taken: refused, as cells are."""
    for options in ({"predict": "action"}, {"grid_tokens": True}):
        with pytest.raises(UsageError, match="--merge state"):
            built(GAMES, tmp_path / "out", "state", **options)


def test_what_is_not_markov_reads_well(tmp_path: Path) -> None:
    """The conflicts that a manifest keeps hold the marks of frames, not thousands of cells."""
    still = [[0] * 64] * 64
    rows = []
    for guid, cell in (("p", 1), ("q", 2)):
        rows += [step("RESET", still, guid=guid), step("ACTION1", [*still[1:], [0] * 63 + [cell]], guid=guid)]
    result = built(written(tmp_path / "a.jsonl", rows), tmp_path / "out", "state")
    ((state, action, after),) = result.manifest.statistics["trie"]["train"]["markov_conflicts"]
    assert (action, len(set(after))) == ('"ACTION1"', 2)
    assert all(text.startswith('{"frame":#') and len(text) < 100 for text in (state, *after))


@real_files
def test_real_games(tmp_path: Path) -> None:
    """Six episodes of 161 pairs; merged by prefix or by state they are as many rows as a slow count says."""
    pairs, prefixes, steps, states = graph(REAL)
    assert (pairs, prefixes, steps, states) == (161, 101, 99, 98)
    by_prefix, by_state = built(REAL, tmp_path / "a").manifest, built(REAL, tmp_path / "b", "state").manifest
    assert by_prefix.ledger["total"]["pairs"]["in"] == pairs + 1  # the step without a frame
    assert by_prefix.packing["train"]["rows"] == prefixes
    assert by_state.packing["train"]["rows"] == steps
    assert by_prefix.ledger["reading"]["dropped_transitions"] == 1
    assert by_prefix.ledger["reading"]["bad_records"] == 1
    read = [record for path in REAL.glob("*.jsonl") for record in records(path, BadRecords())]
    assert len({json.dumps(json.loads(value)["state"]) for record in read for value in values(record)}) == states


@real_files
def test_real_frames_are_spelled_out() -> None:
    """Cell by cell, every frame of the real plays stands in its example as it stands in the file."""
    for path in sorted(REAL.glob("ls20*[0-9a-f].jsonl")):
        if "recording" in path.name:
            continue
        rows = [json.loads(line)["data"] for line in path.read_text().splitlines()]
        (record,) = records(path, grid_tokens=True)
        text = "<bos>"
        for row in rows:
            lines = "".join("".join(f"{cell:x}" for cell in line) + "\n" for line in row["frame"][-1])
            text += f"<{row['action_input']['id'].lower()}>{lines}<not-finished>"
        assert spelled(record)[0] == text + "<eos>"
        assert isinstance(record.body, Ids)
        sizes = np.diff(record.body.runs, axis=1)[:, 0]
        assert (len(sizes), set(sizes.tolist())) == (40, {64 * 65 + 1})
