"""Atomic files, the order of publishing, orphans, readers' locks and what is kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dagpack_cli import storage
from dagpack_cli.errors import BusyError, DamageError, NoInputError
from dagpack_cli.locks import lock_output
from dagpack_cli.storage import is_output, open_current, publish, read_current, sha256_file, write_atomic

Event = tuple[str, str]


def stage(out: Path, content: str = "first") -> Path:
    """Write a complete staged generation with a file in a folder of its own."""
    staged = out / ".staging" / "work"
    (staged / "shards").mkdir(parents=True)
    (staged / "shards" / "train-00000.parquet").write_text(f"windows of {content}")
    (staged / "manifest.json").write_text(f'"{content}"\n')
    return staged


def generations(out: Path) -> list[str]:
    """Return the names of the generations there are."""
    return sorted(path.name for path in (out / "generations").iterdir())


def publish_all(out: Path, *contents: str, keep: int = 9) -> list[Path]:
    """Publish some generations one after the other; return their paths."""
    return [publish(out, stage(out, content), f"{at:064x}", keep=keep)[0] for at, content in enumerate(contents)]


@contextmanager
def recorded(out: Path) -> Iterator[list[Event]]:
    """Record, in order, what is made durable, renamed, replaced and removed, by path below ``out``."""
    events: list[Event] = []

    def relative(path: Any) -> str:
        return Path(os.path.relpath(os.fspath(path), out)).as_posix()

    def recorder(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(first: Any, *others: Any, **options: Any) -> Any:
            path = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else first
            target = others[0] if name in ("rename", "replace") else path
            events.append((name, relative(target)))
            return function(first, *others, **options)

        return record

    with (
        mock.patch.object(os, "fsync", recorder("sync", os.fsync)),
        mock.patch.object(os, "rename", recorder("rename", os.rename)),
        mock.patch.object(os, "replace", recorder("replace", os.replace)),
        mock.patch.object(shutil, "rmtree", recorder("remove", shutil.rmtree)),
    ):
        yield events


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk while a file is replaced leaves what was there, and no partial file beside it."""
    path = tmp_path / "CURRENT"
    write_atomic(path, b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["CURRENT"]


def test_a_file_is_durable_before_its_name_is(tmp_path: Path) -> None:
    """The content is synced, then renamed, then the folder that holds the name is synced."""
    with recorded(tmp_path) as events:
        write_atomic(tmp_path / "CURRENT", b"new")
    assert events == [("sync", ".CURRENT.partial"), ("replace", "CURRENT"), ("sync", ".")]
    assert (tmp_path / "CURRENT").read_bytes() == b"new"


def test_publishing_goes_in_the_order_that_survives_a_crash(tmp_path: Path) -> None:
    """Every staged file is durable before the rename, the rename before CURRENT, CURRENT before any removal."""
    old = publish_all(tmp_path, "first", "second")
    staged = stage(tmp_path, "third")
    names = [path.relative_to(tmp_path).as_posix() for path in (staged, *staged.rglob("*"))]
    with recorded(tmp_path) as events:
        new, held = publish(tmp_path, staged, "c" * 64, keep=1)
    renamed = events.index(("rename", f"generations/{new.name}"))
    assert {("sync", name) for name in names} <= set(events[:renamed])
    folders = [events.index(("sync", name)) for name in names if (new / Path(name).relative_to(names[0])).is_dir()]
    assert len(folders) == 2
    assert folders[0] > folders[1], "the staged folder is synced after what is in it"
    rest = events[renamed + 1 :]
    assert rest[:4] == [
        ("sync", "generations"),
        ("sync", ".CURRENT.partial"),
        ("replace", "CURRENT"),
        ("sync", "."),
    ]
    assert [event for event in rest[4:] if event[0] == "remove"] == [
        ("remove", f"generations/{path.name}") for path in old
    ]
    assert not any(kind in ("remove", "replace") for kind, _ in events[:renamed])
    assert held == []
    assert generations(tmp_path) == [new.name]


def test_current_names_the_generation_and_its_checksum(tmp_path: Path) -> None:
    """CURRENT is one line of JSON, and a reader gets the manifest it speaks of."""
    path = publish_all(tmp_path, "first")[0]
    digest = sha256_file(path / "manifest.json")
    assert json.loads((tmp_path / "CURRENT").read_bytes()) == {"generation": path.name, "manifest_sha256": digest}
    assert read_current(tmp_path) == (path.name, digest)
    with open_current(tmp_path) as generation:
        assert (generation.path, generation.name, generation.manifest_bytes) == (path, path.name, b'"first"\n')
    assert path.name == f"000001-{0:012x}"
    assert not (tmp_path / ".staging" / "work").exists()


@pytest.mark.parametrize("point", ["rename", "replace"])
def test_a_publish_that_stops_leaves_the_previous_build(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at the rename or at CURRENT leaves the old pointer; the same build then takes up where it stopped."""
    old = publish_all(tmp_path, "first")[0]
    staged = stage(tmp_path, "second")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, point, fail)
        with pytest.raises(OSError, match="input/output"):
            publish(tmp_path, staged, "b" * 64, keep=1)
    with open_current(tmp_path) as generation:
        assert generation.path == old
    if point == "replace":  # the rename was done: the generation is complete, and found again
        staged = stage(tmp_path, "second")
    path, _ = publish(tmp_path, staged, "b" * 64, keep=1)
    assert path.name == f"000002-{'b' * 12}"
    assert generations(tmp_path) == [path.name]
    assert not staged.exists()


def test_an_orphan_of_another_build_goes(tmp_path: Path) -> None:
    """A generation renamed but never named is removed once a newer one is, and its number is not used again."""
    first = publish_all(tmp_path, "first")[0]
    orphan = tmp_path / "generations" / f"000002-{'e' * 12}"
    stage(tmp_path, "orphan").rename(orphan)
    staged = stage(tmp_path, "second")
    with recorded(tmp_path) as events:
        path, _ = publish(tmp_path, staged, "b" * 64)
    assert path.name == f"000003-{'b' * 12}"
    assert generations(tmp_path) == [first.name, path.name]
    assert events.index(("remove", f"generations/{orphan.name}")) > events.index(("replace", "CURRENT"))


def test_an_equal_build_after_a_whole_one_is_a_generation_of_its_own(tmp_path: Path) -> None:
    """Only an orphan is taken up: a build of the current manifest, as after damage, is published anew."""
    first, second = publish_all(tmp_path, "same", "same")
    assert (first.name[:6], second.name[:6]) == ("000001", "000002")
    assert generations(tmp_path) == [first.name, second.name]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_generations_stay(keep: int, tmp_path: Path) -> None:
    """The last ``keep`` generations stay, the new one among them."""
    paths = publish_all(tmp_path, "a", "b", "c", "d", keep=keep)
    assert generations(tmp_path) == [path.name for path in paths[-keep:]]


def test_a_generation_being_read_is_left_and_named(tmp_path: Path) -> None:
    """A reader keeps its generation through later builds; when it has gone the next build removes it."""
    first = publish_all(tmp_path, "first")[0]
    with open_current(tmp_path) as reader:
        second, held = publish(tmp_path, stage(tmp_path, "second"), "b" * 64, keep=1)
        assert held == [first.name]
        assert (reader.path / "shards" / "train-00000.parquet").read_text() == "windows of first"
        with open_current(tmp_path) as other:
            assert other.path == second
    third, held = publish(tmp_path, stage(tmp_path, "third"), "c" * 64, keep=1)
    assert held == []
    assert generations(tmp_path) == [third.name]


def test_a_removal_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    """An old generation without a manifest is what a stopped removal left."""
    first = publish_all(tmp_path, "first")[0]
    (first / "manifest.json").unlink()
    path, held = publish(tmp_path, stage(tmp_path, "second"), "b" * 64, keep=1)
    assert held == []
    assert generations(tmp_path) == [path.name]


def test_a_reader_follows_a_writer_that_prunes_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the generation of CURRENT goes before it is locked, the reader looks at CURRENT again."""
    publish_all(tmp_path, "first")
    stale = read_current(tmp_path)
    new, _ = publish(tmp_path, stage(tmp_path, "second"), "b" * 64, keep=1)
    answers = [stale, read_current(tmp_path)]
    monkeypatch.setattr(storage, "read_current", lambda _: answers.pop(0))
    with open_current(tmp_path) as generation:
        assert generation.path == new
    assert answers == []


def test_a_pointer_to_nothing_is_damage(tmp_path: Path) -> None:
    """A CURRENT whose generation is missing for good, or whose manifest differs, is named as damage."""
    path = publish_all(tmp_path, "first")[0]
    (path / "manifest.json").write_text('"other"\n')
    with pytest.raises(DamageError, match="as in CURRENT"):
        open_current(tmp_path)
    shutil.rmtree(path)
    with pytest.raises(DamageError, match="missing"):
        open_current(tmp_path)
    (tmp_path / "CURRENT").unlink()
    with pytest.raises(NoInputError, match="no finished build"):
        open_current(tmp_path)


def test_a_damaged_pointer_hinders_no_new_build(tmp_path: Path) -> None:
    """Where CURRENT says nothing, a new build is published and no older one is taken for an orphan."""
    publish_all(tmp_path, "first", "second")
    (tmp_path / "CURRENT").write_text("{")
    path, _ = publish(tmp_path, stage(tmp_path, "third"), "c" * 64, keep=3)
    assert path.name == f"000003-{'c' * 12}"
    assert len(generations(tmp_path)) == 3
    with open_current(tmp_path) as generation:
        assert generation.path == path


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second writer is told to come again, the lock file stays, and the lock goes with its holder."""
    out = tmp_path / "new" / "out"
    with lock_output(out), pytest.raises(BusyError, match="another build"), lock_output(out):
        pass
    inode = (out / "LOCK").stat().st_ino
    with lock_output(out):
        assert (out / "LOCK").stat().st_ino == inode
    assert not is_output(out)
    publish_all(out, "first")
    assert is_output(out)
