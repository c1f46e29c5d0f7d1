"""Episodes: what is not known to follow is not joined, whatever stands between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.games import transitions
from dagpack_cli.corpora.games.episodes import Episode, Part
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Place, Values


def read(tmp_path: Path, rows: list[Any], **options: Any) -> tuple[list[tuple[str, list[str]]], int]:
    """Return id and nodes of every example of transition records, and how many records are bad."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    bad = BadRecords()
    found = []
    for record in transitions.read(stat_source(path, "a.jsonl", "transitions"), ReadOptions(**options), bad):
        assert isinstance(record.body, Values)
        assert record.dropped == 0
        found.append((record.id, [value.decode() for value in record.body.values]))
    return found, bad.count


@pytest.mark.parametrize("broken", ['{"episode": 1, "sta', '{"episode": 1}', "[1]", '{"state": 5}'])
def test_a_bad_record_parts_transitions(broken: str, tmp_path: Path) -> None:
    """States on both sides of a record that cannot be read are no transition; later episodes are whole."""
    rows = [{"episode": 1, "state": n, "action": n} for n in range(4)]
    rows_of_2 = [{"episode": 2, "state": n} for n in range(2)]
    found, bad = read(tmp_path, [*rows[:2], broken, *rows[2:], *rows_of_2])
    assert found == [
        ("a.jsonl#1[0:2]", ['{"action":0,"state":0}', '{"action":1,"state":1}']),
        ("a.jsonl#1[2:4]", ['{"action":2,"state":2}', '{"action":3,"state":3}']),
        ("a.jsonl#2", ['{"state":0}', '{"state":1}']),
    ]
    assert bad == 1


def test_an_action_taken_before_a_gap_leads_nowhere(tmp_path: Path) -> None:
    """Where actions are those taken, the one before a bad record produced a state that nobody read."""
    rows: list[Any] = [{"episode": 1, "state": n, "action": n} for n in range(3)]
    found, _ = read(tmp_path, [rows[0], "{", *rows[1:]], action_taken=True)
    assert [nodes for _, nodes in found] == [['{"state":0}'], ['{"state":1}', '{"action":1,"state":2}']]


def test_open_episodes_are_parted_together(tmp_path: Path) -> None:
    """A record that cannot be read may have been any episode's; a record behind it parts each only once."""
    rows: list[Any] = [{"episode": name, "state": n} for n in range(3) for name in "ab"]
    found, bad = read(tmp_path, [*rows[:2], "{", "{", *rows[2:]])
    assert [name for name, _ in found] == ["a.jsonl#a[0:1]", "a.jsonl#a[1:3]", "a.jsonl#b[0:1]", "a.jsonl#b[1:3]"]
    assert bad == 2


def test_an_episode_of_nothing_has_no_parts() -> None:
    """States that nobody saw are counted, and make no example."""
    episode: Episode[int] = Episode(Place("a", 0), "a", 0)
    episode.miss()
    assert (list(episode.parts()), episode.unseen) == ([], 1)
    episode.add(7, b"7", None, rules=(), damage=0)
    assert list(episode.parts()) == [Part(0, 1, 1)]
