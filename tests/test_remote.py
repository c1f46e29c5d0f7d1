"""Corpora and outputs in object stores: servers on loopback, killed uploads, hostile names, other hands."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, command, environment, run
from killed import contents, failures_of
from object_store import BUCKET, ObjectStore, answering, serving
from test_determinism import token_files, write

from dagpack_cli import failpoints
from dagpack_cli.errors import DamageError, OutputError, UsageError
from dagpack_cli.remote.mirror import Mirror
from dagpack_cli.remote.names import colliding, is_hidden, why_refused
from dagpack_cli.remote.stores import Facts, Found, Store, open_store
from dagpack_cli.remote.uris import RemoteUri, locate
from dagpack_cli.stages.receipts import SilentListener
from dagpack_cli.storage import read_current

OPTIONS = ("--seq-len", "64", "--on-long", "split", "--polish", "0")
CORPUS, OUT = f"s3://{BUCKET}/data", f"s3://{BUCKET}/out"


both = pytest.mark.parametrize("store", ["s3", "gs"], indirect=True)
"""Marks what is tested with either store; all else is tested with S3 alone."""


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One S3 server for all tests."""
    with serving("s3", tmp_path_factory.mktemp("s3") / "log") as store:
        yield store


@pytest.fixture(scope="session")
def gs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One server of Google's store for all tests."""
    with serving("gs", tmp_path_factory.mktemp("gs") / "log") as store:
        yield store


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A server, empty, with this process set to use it and to keep its copies in a folder of the test."""
    server: ObjectStore = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_server")
    server.clear()
    settings = {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL" if server.scheme == "s3" else "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{server.port}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    return server


@pytest.fixture
def corpus(store: ObjectStore, tmp_path: Path) -> Path:
    """A small corpus of token ids, here and at `CORPUS`."""
    write(tmp_path / "local" / "data", token_files(1, num_files=3, num_records=6))
    store.upload(tmp_path / "local" / "data", "data")
    return tmp_path / "local" / "data"


def build(*words: str | Path) -> Ran:
    """Build, and expect that it works."""
    ran = run("build", *words, *OPTIONS)
    assert ran.code == 0, ran.err
    return ran


def generation(store: ObjectStore, prefix: str = "out") -> dict[str, str]:
    """Return the SHA-256 of every object of the current generation, by name, but for ``run.json``."""
    folder = f"{prefix}/generations/{json.loads(store.get(f'{prefix}/CURRENT'))['generation']}/"
    return {
        key.removeprefix(folder): hashlib.sha256(store.get(key)).hexdigest()
        for key in store.keys(folder)
        if not key.endswith("/run.json")
    }


def names(store: ObjectStore, prefix: str = "out") -> list[str]:
    """Return the names of the generations that are there, whole or not."""
    return sorted({key.split("/")[2] for key in store.keys(f"{prefix}/generations/")})


def add_file(store: ObjectStore, corpus: Path, name: str = "more.jsonl", seed: int = 2) -> None:
    """Add a file to the corpus, here and there."""
    data = token_files(seed, num_files=1, num_records=4)["d0/f00.jsonl"]
    write(corpus, {name: data})
    store.put(f"data/{name}", (corpus / name).read_bytes())


def fresh(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have no local copies from now on, like another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@both
def test_from_store_to_store_as_from_folder_to_folder(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """A build of a URI into a URI has the bytes of the local build, and what reads it says the same."""
    ran = build(store.data, store.out)
    here = build(corpus, tmp_path / "out")
    assert generation(store) == contents(tmp_path / "out")
    assert ran.out.splitlines()[:-1] == here.out.splitlines()[:-1]
    assert ran.out.splitlines()[-1] == f"written: {store.out}/generations/{names(store)[0]}"
    for words in (["stats"], ["stats", "--json"], ["show", "--rows", "5"], ["verify"], ["export"], ["plan"]):
        there, local = run(*words, store.out), run(*words, tmp_path / "out")
        assert (there.code, there.out) == (local.code, local.out) == (0, local.out), words
    assert run("plan", store.data).out == run("plan", corpus).out
    printed = Path(run("path", store.out).out.strip())
    assert failures_of(printed.parent.parent) == []
    assert contents(printed.parent.parent) == contents(tmp_path / "out")


@both
def test_one_object_is_a_corpus(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """A URI of an object is a corpus of one file, fetched once."""
    name = sorted(path.relative_to(corpus).as_posix() for path in corpus.rglob("*.jsonl"))[0]
    build(f"{store.data}/{name}", tmp_path / "there")
    build(corpus / name, tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    store.forget()
    assert "unchanged" in build(f"{store.data}/{name}", tmp_path / "there").out
    assert store.fetched() == []


def test_stages_of_a_uri(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """Ingest, dedup and pack of a URI publish what a build does; a pack of what is published needs no text."""
    build(corpus, tmp_path / "out")
    assert run("ingest", CORPUS, OUT).code == 0
    assert run("dedup", OUT).code == 0
    assert store.keys("out") == []
    assert run("pack", OUT, *OPTIONS).code == 0
    assert generation(store) == contents(tmp_path / "out")
    shorter = ("--seq-len", "32", "--on-long", "split", "--polish", "0")
    for words in ((OUT, f"s3://{BUCKET}/again"), (OUT, tmp_path / "again"), (tmp_path / "out", f"s3://{BUCKET}/third")):
        assert run("pack", *words, *shorter).code == 0, words
    assert generation(store, "again") == contents(tmp_path / "again") == generation(store, "third")


@both
def test_a_second_run_fetches_and_uploads_nothing(store: ObjectStore, corpus: Path) -> None:
    """Unchanged, not an object is read but CURRENT and the manifest, and none is written."""
    build(store.data, store.out)
    store.forget()
    assert build(store.data, store.out).out.startswith(f"unchanged: {store.out}")
    assert store.written() == []
    assert {key.rsplit("/", 1)[-1] for key in store.fetched()} <= {"CURRENT", "manifest.json"}
    assert run("verify", store.out).code == 0
    store.forget()
    assert run("verify", store.out).code == 0
    assert {key.rsplit("/", 1)[-1] for key in store.fetched()} <= {"CURRENT", "manifest.json"}
    store.forget()
    build(store.data, store.out, "--rehash")
    assert len([key for key in store.fetched() if key.startswith("data/")]) == 3


@both
def test_only_what_changed_is_fetched(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """An object that is new, gone, replaced, or replaced by one of the same size in the same second, is noticed."""
    first, second, third = sorted(path.relative_to(corpus).as_posix() for path in corpus.rglob("*.jsonl"))
    build(store.data, store.out)

    def same_as_local() -> list[str]:
        store.forget()
        build(store.data, store.out)
        fetched = [key for key in store.fetched() if key.startswith("data/")]
        build(corpus, tmp_path / "out")
        assert generation(store) == contents(tmp_path / "out")
        return fetched

    add_file(store, corpus)
    assert same_as_local() == ["data/more.jsonl"]
    (corpus / first).unlink()
    store.remove(f"data/{first}")
    assert same_as_local() == []
    (corpus / second).write_text((corpus / third).read_text())
    store.put(f"data/{second}", (corpus / second).read_bytes())
    assert same_as_local() == [f"data/{second}"]
    old = (corpus / third).read_bytes()
    turned = b"".join(reversed(old.splitlines(keepends=True)))
    assert turned != old
    (corpus / third).write_bytes(turned)
    store.put(f"data/{third}", turned)
    assert same_as_local() == [f"data/{third}"]


def test_a_copy_that_was_touched_is_fetched_again(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """What somebody wrote into the local copies is no input."""
    build(CORPUS, OUT)
    before = generation(store)
    assert (tmp_path / "cache" / "dagpack").stat().st_mode & 0o077 == 0  # nobody else reads them
    copies = sorted((tmp_path / "cache").glob("dagpack/data-*/corpus/files/data/**/*.jsonl"))
    assert len(copies) == 3
    copies[0].write_bytes(copies[1].read_bytes())
    copies[1].unlink()
    (copies[2].parent / "extra.jsonl").write_bytes(copies[2].read_bytes())
    build(CORPUS, OUT)
    assert generation(store) == before


class Shelf(Store):
    """A store in a dict, whose listing has the times it is given: name -> (bytes, time)."""

    def __init__(self) -> None:
        self.uri = RemoteUri("s3", "shelf", "")
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.asked: list[str] = []

    def list(self, folder: str = "") -> list[Found]:
        """Return what there is."""
        return [Found(name, len(data), mtime_ns) for name, (data, mtime_ns) in self.objects.items()]

    def stat(self, name: str) -> Facts | None:
        """Return size and checksum."""
        self.asked.append(name)
        data = self.objects[name][0]
        return Facts(len(data), hashlib.sha256(data).hexdigest())

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes, one at a time."""
        yield from (self.objects[name][0][at : at + 1] for at in range(len(self.objects[name][0])))


def test_same_size_and_time_are_not_the_same_object(tmp_path: Path) -> None:
    """A young object is asked for its tag, for another may have its size and time; an old one is not asked."""
    shelf = Shelf()
    shelf.objects = {"young": (b"one", time.time_ns()), "old": (b"one", 10**18)}

    def update() -> dict[str, bytes]:
        shelf.asked.clear()
        mirror = Mirror(shelf, tmp_path / "files", tmp_path / "state", workers=1, listener=SilentListener())
        assert mirror.update(shelf.list()) == []
        return {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}

    assert update() == {"young": b"one", "old": b"one"}
    assert update() == {"young": b"one", "old": b"one"}
    assert shelf.asked == ["young"]
    shelf.objects["young"] = b"two", shelf.objects["young"][1]
    assert update() == {"young": b"two", "old": b"one"}
    (tmp_path / "state" / "objects.json").write_text("[")
    assert update() == {"young": b"two", "old": b"one"}
    assert shelf.asked.count("old") == 2


@both
def test_what_is_no_input_is_not_fetched(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """Hidden objects, the output below the corpus and other outputs in it are left out, as locally."""
    store.put("data/.hidden.jsonl", b"not JSON")
    store.put("data/.git/x.jsonl", b"not JSON")
    store.put("data/older/CURRENT", b"{}")
    store.put("data/older/generations/000001-0123456789ab/shards/x.jsonl", b"not JSON")
    store.put("data/out/generations/000001-0123456789ab/x.jsonl", b"not JSON")  # left by a dead upload
    store.forget()
    build(store.data, f"{store.data}/out")
    inputs = [f"data/{path.relative_to(corpus).as_posix()}" for path in corpus.rglob("*.jsonl")]
    assert [key for key in store.fetched() if key.startswith("data/") and "/out/" not in key] == sorted(inputs)
    assert not [key for key in store.fetched() if key.endswith("/x.jsonl")]
    build(corpus, tmp_path / "out")
    assert generation(store, "data/out") == contents(tmp_path / "out")
    ran = run("build", f"{store.data}/out", tmp_path / "other")
    assert (ran.code, "is an output of dagpack" in ran.err) == (66, True)
    ran = run("build", store.data, f"{store.data}/")
    assert (ran.code, "CORPUS too" in ran.err) == (2, True)


@both
def test_files_first_then_manifest_then_current(store: ObjectStore, corpus: Path) -> None:
    """The manifest is written after every other object of its generation, and CURRENT last of all."""
    store.forget()
    build(store.data, store.out)
    last = {key: number for number, key in enumerate(store.written())}
    ordered = sorted(last, key=lambda key: last[key])
    assert ordered[-1] == "out/CURRENT"
    assert ordered[-2].endswith("/manifest.json")
    assert len(ordered) == len(generation(store)) + 2


@both
@pytest.mark.parametrize(
    "name", ["remote-upload.after", "remote-manifest.before", "remote-current.before", "remote-current.after"]
)
def test_a_dead_upload_costs_nothing(
    name: str, store: ObjectStore, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each step of an upload, a reader has yesterday's build or today's, and the next run ends the same."""
    build(store.data, store.out, "--keep", "1")
    yesterday = generation(store)
    add_file(store, corpus)
    build(corpus, tmp_path / "out")
    today = contents(tmp_path / "out")
    words = command("build", store.data, store.out, "--keep", "1", *OPTIONS)
    armed = f"{name}:7" if name.startswith("remote-upload") else name
    dead = subprocess.run(words, env=environment(DAGPACK_FAILPOINT=armed), capture_output=True, text=True)
    assert dead.returncode == -9, dead.stderr
    with monkeypatch.context() as patch:
        fresh(patch, tmp_path / "reader")
        exported = run("export", store.out).out  # after every byte was compared with its manifest
    late = name == "remote-current.after"
    assert generation(store) == (today if late else yesterday)
    assert (exported == run("export", tmp_path / "out").out) == late
    (log,) = (tmp_path / "cache").glob("dagpack/out-*/build/uploads.jsonl")
    noted = [json.loads(line)[0] for line in log.read_text().splitlines()]
    sent = [name for name in noted if name.startswith("generations/000002")]
    store.forget()
    build(store.data, store.out, "--keep", "1")
    assert generation(store) == today
    assert names(store) == [json.loads(store.get("out/CURRENT"))["generation"]]
    assert not {f"out/{key}" for key in sent} & set(store.written())
    assert name.startswith("remote-upload") or len(sent) == len(today)  # with run.json, without the manifest


@pytest.mark.parametrize(("action", "code"), [("eio", 74), ("pause={reached}", -15)])
def test_a_transfer_that_fails_ends_the_others(
    action: str, code: int, store: ObjectStore, corpus: Path, tmp_path: Path
) -> None:
    """An error or a signal in the midst of an upload ends the command at once, and the next one completes it."""
    reached = tmp_path / "reached"
    env = environment(DAGPACK_FAILPOINT=f"remote-upload.before:5:{action.format(reached=reached)}")
    words = command("build", CORPUS, OUT, *OPTIONS)
    dying = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    while code == -15 and not reached.exists():
        assert dying.poll() is None
        time.sleep(0.01)
    if code == -15:
        dying.terminate()
    said = dying.communicate()[1]
    assert (dying.returncode, len(said.splitlines())) == (code, 2 if code == 74 else 1), said
    assert [key for key in store.keys("out") if key.endswith(("/CURRENT", "/manifest.json"))] == []
    store.forget()
    build(CORPUS, OUT)
    build(corpus, tmp_path / "out")
    assert generation(store) == contents(tmp_path / "out")


@both
def test_what_a_dead_upload_left_goes_with_the_next_build(store: ObjectStore, corpus: Path) -> None:
    """Where the corpus changed since, the dead upload's objects are removed, and so is what --keep does not keep."""
    build(store.data, store.out)
    add_file(store, corpus)
    armed = environment(DAGPACK_FAILPOINT="remote-upload.after:2")
    assert (
        subprocess.run(command("build", store.data, store.out, *OPTIONS), env=armed, capture_output=True).returncode
        == -9
    )
    assert len(names(store)) == 2
    add_file(store, corpus, "third.jsonl", 3)
    store.put("out/generations/notes.txt", b"somebody's")
    store.put("out/generations/000009-0123456789ab/shards/x", b"of another build, at work")
    armed = environment(DAGPACK_FAILPOINT="remote-remove.before")
    assert (
        subprocess.run(command("build", store.data, store.out, *OPTIONS), env=armed, capture_output=True).returncode
        == -9
    )
    assert [name[:6] for name in names(store)] == ["000001", "000002", "000003", "000009", "notes."]
    build(store.data, store.out)
    assert [name[:6] for name in names(store)] == ["000001", "000003", "000009", "notes."]
    build(store.data, store.out, "--keep", "1")
    assert [name[:6] for name in names(store)] == ["000003", "000009", "notes."]


@both
def test_a_hole_in_what_is_published_is_filled(store: ObjectStore, corpus: Path) -> None:
    """An object that is gone, or is not what was sent, is sent again by the next build, and nothing else is."""
    build(store.data, store.out)
    before = generation(store)
    gone, other = [key for key in store.keys("out/generations/") if "/trie/" in key][:2]
    store.remove(gone)
    store.put(other, bytes(len(store.get(other))))
    store.forget()
    build(store.data, store.out)
    assert sorted(set(store.written())) == sorted([gone, other])
    assert generation(store) == before


@both
def test_damage_is_found_on_either_way(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """A byte that changed in the store stops a reader, one that changed here stops an upload: 76 both times."""
    build(store.data, store.out)
    shard = next(key for key in store.keys("out/generations/") if key.endswith(".parquet") and "/shards/" in key)
    good = store.get(shard)
    store.put(shard, good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    for word in ("verify", "path", "export"):
        ran = run(word, store.out)
        assert (ran.code, f"{store.scheme}://{BUCKET}/{shard}: sha256" in ran.err) == (76, True), ran.err
    assert run("stats", store.out).code == 0  # which reads the manifest alone
    store.put(shard, good)
    assert run("verify", store.out).code == 0
    manifest = next(key for key in store.keys("out/generations/") if key.endswith("/manifest.json"))
    whole = store.get(manifest)
    store.put(manifest, whole.replace(b"000", b"001", 1))
    assert run("stats", store.out).code == 76
    store.put(manifest, whole)

    add_file(store, corpus)
    armed = environment(DAGPACK_FAILPOINT="remote-upload.before")
    assert (
        subprocess.run(command("build", store.data, store.out, *OPTIONS), env=armed, capture_output=True).returncode
        == -9
    )
    current = store.get("out/CURRENT")
    (local,) = (tmp_path / "cache").glob("dagpack/out-*/build/out/generations/000002-*/shards/train-00000.parquet")
    good = local.read_bytes()
    local.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    ran = run("build", store.data, store.out, *OPTIONS)
    assert (ran.code, "as the manifest says" in ran.err) == (76, True)
    assert store.get("out/CURRENT") == current
    local.write_bytes(good)
    build(store.data, store.out)
    assert run("verify", store.out).code == 0


@both
def test_what_somebody_else_published_is_not_overwritten(
    store: ObjectStore, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine stops with 78 before it builds; --adopt goes on from what is there; the first one stops then."""
    build(store.data, store.out)
    add_file(store, corpus)
    current = store.get("out/CURRENT")
    with monkeypatch.context() as patch:
        fresh(patch, tmp_path / "elsewhere")
        for words in (("build", store.data, store.out), ("ingest", store.data, store.out), ("pack", store.out)):
            ran = run(*words)
            assert (ran.code, "--adopt" in ran.err) == (78, True), ran.err
        assert store.get("out/CURRENT") == current
        build(store.data, store.out, "--adopt")
        assert [name[:6] for name in names(store)] == ["000001", "000002"]
    ran = run("build", store.data, store.out, *OPTIONS)
    assert (ran.code, "000002" in ran.err) == (78, True)
    assert build(store.data, store.out, "--adopt").out.startswith("unchanged")
    store.remove("out/CURRENT")
    assert "published anew" in build(store.data, store.out).err
    assert run("verify", store.out).code == 0


@pytest.mark.parametrize("reached", ["remote-upload.before", "remote-manifest.after"])
def test_who_publishes_first_is_not_overwritten(reached: str, store: ObjectStore, corpus: Path) -> None:
    """Where somebody published while this build was on its way, CURRENT stays theirs: 75."""
    build(CORPUS, OUT)
    add_file(store, corpus)
    theirs = b'{"generation":"000007-0123456789ab","manifest_sha256":"' + b"0" * 64 + b'"}\n'
    failpoints.listen(lambda name: store.put("out/CURRENT", theirs) if name == reached else None)
    try:
        ran = run("build", CORPUS, OUT, *OPTIONS)
    finally:
        failpoints.listen(None)
    assert (ran.code, "000007-0123456789ab" in ran.err) == (75, True), ran.err
    assert store.get("out/CURRENT") == theirs


def test_a_reader_whose_generation_goes_takes_the_next(
    store: ObjectStore, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation that is removed while it is fetched is given up for the one that is current by then."""
    build(CORPUS, OUT, "--keep", "1")
    add_file(store, corpus)
    build(corpus, tmp_path / "out")
    todo = [command("build", CORPUS, OUT, "--keep", "1", *OPTIONS)]
    env = environment()

    def publish(name: str) -> None:
        if name == "remote-fetch.before" and todo:
            subprocess.run(todo.pop(), env=env, check=True, capture_output=True)

    fresh(monkeypatch, tmp_path / "reader")
    failpoints.listen(publish)
    try:
        ran = run("export", OUT)
    finally:
        failpoints.listen(None)
    assert (ran.code, ran.out) == (0, run("export", tmp_path / "out").out)


@both
def test_an_object_that_changes_while_it_is_read(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """It is read again, and what is built is one state of it; one that changes all the time is an error."""
    data = [token_files(seed, num_files=1, num_records=4)["d0/f00.jsonl"] for seed in range(5, 9)]
    write(tmp_path / "states", {f"{number}.jsonl": records for number, records in enumerate(data)})
    bodies = [(tmp_path / "states" / f"{number}.jsonl").read_bytes() for number in range(4)]
    store.put("one/x.jsonl", bodies[0])

    def replace(times: int) -> Any:
        left = bodies[1 : 1 + times]

        def hear(name: str) -> None:
            if name == "remote-fetch.after" and left:
                store.put("one/x.jsonl", left.pop())

        return hear

    for times, code in ((3, 65), (1, 0)):
        failpoints.listen(replace(times))
        try:
            ran = run("build", f"{store.scheme}://{BUCKET}/one", tmp_path / "there", *OPTIONS)
        finally:
            failpoints.listen(None)
        assert ran.code == code, ran.err
        assert code == 0 or "changed while it was read" in ran.err
    write(tmp_path / "here", {"x.jsonl": data[1]})
    build(tmp_path / "here", tmp_path / "out")
    assert contents(tmp_path / "there") == contents(tmp_path / "out")


HOSTILE = ["../up.jsonl", "a/../../up.jsonl", "/abs.jsonl", "a//b.jsonl", "./x.jsonl", f"{'x' * 300}.jsonl", "d/", "e/"]


@pytest.mark.parametrize("name", HOSTILE)
def test_keys_that_are_no_names_are_refused(name: str, store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """A key that leads elsewhere stops the build by name, or is left out and told; nothing is written outside."""
    store.put(f"data/{name}", b'{"input_ids": [1, 2, 3]}\n')
    if name == "d/":
        store.put("data/d/x.txt", b"x")
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")}
    ran = run("build", CORPUS, OUT, *OPTIONS)
    assert (ran.code, f"{CORPUS}/{name[:100].rstrip('/')}" in ran.err) == (65, True), ran.err
    assert store.keys("out") == []
    ran = build(CORPUS, OUT, "--on-error", "skip")
    assert f"left out {CORPUS}/{name[:100].rstrip('/')}" in ran.err
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")} == before
    assert not list((tmp_path / "cache").rglob("up.jsonl"))
    (copies,) = (tmp_path / "cache").glob("dagpack/data-*/corpus/files")
    allowed = {"x.txt"} if name == "d/" else set()
    assert {path.name for path in copies.rglob("*") if path.is_file()} - allowed == {
        path.name for path in corpus.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("words", [["build", "OUT"], ["ingest", "OUT"], ["plan"], ["build", "OUT", "--workers", "2"]])
def test_what_is_wrong_in_an_object_is_told_of_its_uri(words: list[str], store: ObjectStore, corpus: Path) -> None:
    """A bad record, alone or in a folder, and a folder with nothing in it, are named where somebody can mend them."""
    del corpus
    store.put("data/sub/bad one.jsonl", b'{"input_ids": [1, 2]}\n{"input_ids": "x"}\n')
    store.put("other/x.bin", b"\x00\x01")
    command, *more = [OUT if word == "OUT" else word for word in words]
    for uri, where in (
        (CORPUS, f"{CORPUS}/sub/bad one.jsonl:2: "),
        (f"{CORPUS}/sub/bad%20one.jsonl", f"{CORPUS}/sub/bad one.jsonl:2: "),
        (f"s3://{BUCKET}/other/", f"s3://{BUCKET}/other: "),
        (f"s3://{BUCKET}/other/x.bin", f"s3://{BUCKET}/other/x.bin: "),
    ):
        ran = run(command, uri, *more)
        assert ran.err.startswith(f"error: {where}"), ran.err
        assert "cache" not in ran.err


def test_a_key_that_is_a_folder_too_is_refused(store: ObjectStore, corpus: Path) -> None:
    """No file system has a file where a folder is."""
    store.put("data/x.jsonl", b"{}")
    store.put("data/x.jsonl/y.jsonl", b"{}")
    ran = run("build", CORPUS, OUT, *OPTIONS)
    assert (ran.code, "folder of other objects" in ran.err) == (65, True)
    store.remove("data/x.jsonl")
    store.put("data/x.jsonl/y.jsonl", b'{"input_ids": [1, 2, 3]}\n')
    build(CORPUS, OUT)
    store.remove("data/x.jsonl/y.jsonl")
    store.put("data/x.jsonl", b'{"input_ids": [1, 2, 3]}\n')
    build(CORPUS, OUT)


def test_tags_are_of_the_content(store: ObjectStore) -> None:
    """The store is asked which content an object has, whatever its name says of compression."""
    there = RemoteUri("s3", BUCKET, "tags")
    for name in ("a.txt", "a.txt.gz", "a.zst"):
        store.put(f"tags/{name}", b"first")
        first = open_store(there).stat(name)
        store.put(f"tags/{name}", b"other")
        other = open_store(there).stat(name)
        assert first == Facts(5, hashlib.md5(b"first").hexdigest())
        assert other == Facts(5, hashlib.md5(b"other").hexdigest())
    assert open_store(there).stat("nothing") is None


@both
def test_names_of_every_kind_arrive(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """Spaces, accents, percent signs and question marks are parts of names; archives are not unpacked on the way."""
    import gzip

    row = b'{"input_ids": [5, 6, 7]}\n'
    for name, body in {"ü +%41?#.jsonl": row, "z.jsonl.gz": gzip.compress(row, mtime=0), "empty.jsonl": b""}.items():
        (corpus / name).write_bytes(body)
        store.put(f"data/{name}", body)
    build(store.data, store.out)
    build(corpus, tmp_path / "out")
    assert generation(store) == contents(tmp_path / "out")


@both
def test_exit_codes(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """What is not there: 66 as input, 73 as output, before anything is built; a credential in a URI: 2, unrepeated."""
    out = tmp_path / "out"
    for words, code in (
        (("build", f"{store.scheme}://no-such-bucket/x", out), 66),
        (("build", f"{store.scheme}://{BUCKET}/nowhere", out), 66),
        (("build", store.data, f"{store.scheme}://no-such-bucket/x"), 73),
        (("stats", f"{store.scheme}://no-such-bucket/x"), 66),
        (("verify", store.data), 66),
        (("dedup", store.out), 66),
        (("build", "s3:///x", out), 2),
        (("build", f"{store.data}?colour=red", out), 2),
        (("build", f"{store.data}?{'connect_timeout=soon' if store.scheme == 's3' else 'region=eu'}", out), 2),
        (("build", "s4://x/y", out), 2),
    ):
        ran = run(*words)
        assert (ran.code, ran.err.count("\n")) == (code, 2), (words, ran.err)
        assert not out.exists()
    assert not list((tmp_path / "cache").glob("dagpack/x-*/build/out/generations"))
    ran = run("stats", "s3://tester:very-secret@windows/out")
    assert (ran.code, "very-secret" in ran.err, "tester" in ran.err) == (2, False, False)


def test_one_build_of_an_output_at_a_time_on_one_machine(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """A second build of the same URI ends with 75 while the first one runs."""
    reached = tmp_path / "reached"
    env = environment(DAGPACK_FAILPOINT=f"remote-manifest.before:1:pause={reached}")
    first = subprocess.Popen(command("build", CORPUS, OUT, *OPTIONS), env=env)
    try:
        while not reached.exists():
            assert first.poll() is None
        assert run("build", CORPUS, OUT, *OPTIONS).code == 75
    finally:
        first.terminate()
        assert first.wait() == -15
    build(CORPUS, OUT)


@pytest.mark.parametrize(
    ("status", "code", "exit_code"), [(403, "AccessDenied", 77), (503, "SlowDown", 74), (301, "PermanentRedirect", 74)]
)
def test_a_store_that_refuses(
    status: int, code: str, exit_code: int, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denied is 77 at once; a store that asks for less is asked again some times; two lines say what to do."""
    with answering(status, code) as (port, requests):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        ran = run("stats", OUT)
    assert (ran.code, ran.err.count("\n")) == (exit_code, 2), ran.err
    assert len(requests) == (4 if status == 503 else 1)
    assert "very-secret" not in ran.err


def test_google_cloud_storage_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Denied is 77 at once, and a store that asks for less 74 after some tries, as with S3."""
    fresh(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr("dagpack_cli.remote.stores._GIVE_UP_SECONDS", 0.5)
    for status, code, words in ((403, 77, ("stats", "OUT")), (403, 77, ("plan", "DATA")), (503, 74, ("stats", "OUT"))):
        with answering(status, "no") as (port, _):
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
            ran = run(words[0], f"gs://lake/{words[1]}")
            assert (ran.code, ran.err.count("\n")) == (code, 2), ran.err


@both
def test_an_object_in_parts(store: ObjectStore) -> None:
    """An object of several parts arrives whole; where a block fails to come, nothing is left of it."""
    place = locate(store.out)
    assert isinstance(place, RemoteUri)
    there = open_store(place, OutputError)
    body = bytes(range(256)) * (11 << 12)  # 11 MiB
    blocks = [body[at : at + (4 << 20)] for at in range(0, len(body), 4 << 20)]
    assert there.write("whole", iter(blocks)).size == len(body)
    assert b"".join(there.blocks("whole")) == store.get("out/whole") == body

    def broken() -> Iterator[bytes]:
        yield from blocks
        raise DamageError("a file", "changed")

    with pytest.raises(DamageError):
        there.write("broken", broken())
    assert store.keys("out") == ["out/whole"]
    elsewhere = open_store(replace(place, bucket="no-such-bucket"), OutputError)
    with pytest.raises(OutputError, match="no such bucket"):
        elsewhere.write("x", iter([b"x"]))


def test_nobody_listens_or_answers(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection and a server that never answers are I/O errors, as an endpoint of the URI too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran = run("build", f"{CORPUS}?endpoint_override=127.0.0.1:{port}&scheme=http", tmp_path / "out")
    assert (ran.code, "cannot be reached" in ran.err) == (74, True)
    monkeypatch.setattr("dagpack_cli.remote.stores._GIVE_UP_SECONDS", 0.5)
    ran = run("stats", f"gs://lake/out?endpoint_override=127.0.0.1:{port}&scheme=http&anonymous=true")
    assert (ran.code, "cannot be reached: Could not connect to server\n" in ran.err) == (74, True), ran.err
    with answering(200, "", seconds=30.0) as (silent, _):
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        settings = f"endpoint_override=127.0.0.1:{silent}&scheme=http&request_timeout=1"
        ran = run("stats", f"{OUT}?{settings}")
    assert (ran.code, "cannot be reached" in ran.err) == (74, True)


def test_training_on_a_uri(store: ObjectStore, corpus: Path, tmp_path: Path) -> None:
    """The dataset and the command take URIs, and train on what is there."""
    torch = pytest.importorskip("torch")
    from dagpack_cli.training import PackedWindows

    build(CORPUS, OUT)
    build(corpus, tmp_path / "out")
    there, here = PackedWindows(OUT), PackedWindows(tmp_path / "out")
    assert len(there) == len(here) > 0
    assert all((there[number]["inputs"] == here[number]["inputs"]).all() for number in range(len(here)))
    assert torch is not None
    sizes = ("--width", "8", "--heads", "2", "--feed-forward", "16", "--layers", "1", "--steps", "2", "--quiet")
    trained = [run("train", "--shards", place, "--device", "cpu", *sizes) for place in (OUT, tmp_path / "out")]
    assert [ran.code for ran in trained] == [0, 0], trained[0].err
    losses = [[json.loads(line)["loss"] for line in ran.out.splitlines()] for ran in trained]
    assert losses[0] == losses[1]


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    """``file://`` works wherever a path does."""
    write(tmp_path / "a b", token_files(1, num_files=2, num_records=4))
    corpus, out = f"file://{tmp_path}/a%20b", f"file://{tmp_path}/out"
    assert build(corpus, out).out.endswith(f"written: {tmp_path}/out/generations/{_only(tmp_path / 'out')}\n")
    for words in (["stats"], ["verify"], ["show"], ["path"], ["export"], ["plan"]):
        assert run(*words, out).code == 0
    assert build(corpus, tmp_path / "out").out.startswith("unchanged")


def _only(out: Path) -> str:
    current = read_current(out)
    assert current is not None
    return current[0]


def test_a_store_of_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that only fsspec knows works alike: here its store in memory, which tells no tags and no times."""
    fsspec = pytest.importorskip("fsspec")
    fresh(monkeypatch, tmp_path / "cache")
    files = fsspec.filesystem("memory")
    write(tmp_path / "data", token_files(1, num_files=2, num_records=4))
    files.put(str(tmp_path / "data"), "/lake/data", recursive=True)
    try:
        build("memory://lake/data", "memory://lake/out")
        build(tmp_path / "data", tmp_path / "out")
        assert run("export", "memory://lake/out").out == run("export", tmp_path / "out").out
        assert run("verify", "memory://lake/out").code == 0
        assert build("memory://lake/data", "memory://lake/out").out.startswith("unchanged")
    finally:
        files.rm("/lake", recursive=True)


def test_uris() -> None:
    """What a URI says, what it may not say, and which texts are none."""
    uri = locate("s3://lake/a/b?endpoint_override=localhost:9000&scheme=http")
    assert isinstance(uri, RemoteUri)
    assert (str(uri), uri.root, uri.name) == ("s3://lake/a/b", "lake/a/b", "b")
    other = locate("s3://lake/a/b")
    assert isinstance(other, RemoteUri)
    assert uri.identity != other.identity
    above, beside = locate("s3://lake/a"), locate("s3://lake/a/bc")
    assert isinstance(above, RemoteUri)
    assert isinstance(beside, RemoteUri)
    assert (other.below(above), beside.below(other), above.below(other), other.below(other)) == ("b", None, None, "")
    for text in ("a/b", "./s3://x", "/s3://x", "s3:/x"):
        assert locate(text) == Path(text)
    for text in ("s3://x/a/../b", "s3://x/a//b", "s3://x/%00", "file://elsewhere/x", "s3://x/%ff", "s3://x/a#b"):
        with pytest.raises(UsageError):
            locate(text)


def test_names() -> None:
    """Which keys files can have as names."""
    for name in ("a", "a/b.c", "...", "a b/ü", "-", "a\\b"):
        assert why_refused(name) == ""
    for name in ("", "/a", "a/", "a//b", ".", "a/./b", "..", "a/..", "a\0", "x" * 256, "é" * 128, "a/" * 1600 + "a"):
        assert why_refused(name), name
    assert colliding(["a/b/c", "a/b", "a", "ab", "a/bc"]) == {"a", "a/b"}
    assert [is_hidden(name) for name in ("a/.b", ".a/b", "a.b/c")] == [True, True, False]


def test_nothing_of_a_store_is_loaded_for_a_path(tmp_path: Path) -> None:
    """Commands on paths import no file systems of pyarrow."""
    code = (
        "import sys; from dagpack_cli.remote import Edge; edge = Edge()\n"
        "with edge: edge.corpus('x', 'y', skip_bad=False); edge.target('y'); edge.source('y'); edge.trie('y')\n"
        "print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "False"
    assert not os.listdir(tmp_path)
    shutil.rmtree(tmp_path)
