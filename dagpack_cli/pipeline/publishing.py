"""From a staged trie to a published generation."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagpack_cli.failpoints import step
from dagpack_cli.manifest import (
    Manifest,
    PackOptions,
    seal_run,
)
from dagpack_cli.memory import default_memory
from dagpack_cli.pipeline.current import find_published
from dagpack_cli.pipeline.execution import BuildResult, Execution
from dagpack_cli.pipeline.staging import clear_staging, point_nowhere, read_sources, read_spec
from dagpack_cli.stages.cache import ReadSource, prune_cache
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.pack import pack_fingerprint, pack_trie
from dagpack_cli.stages.receipts import read_receipt
from dagpack_cli.storage import (
    CACHE,
    STAGING,
    current_name,
    publish,
    remove_generation,
    sha256_file,
)

__all__ = ["note_held", "pack_staged", "publish_staged", "write_generation"]


def pack_staged(
    trie: Path, out: Path, target: Path, options: PackOptions, execution: Execution, started: float
) -> BuildResult:
    """Pack a trie staged in ``out`` and publish it in ``target``, nearly always the same directory."""
    info = TrieInfo.from_receipt(read_receipt(trie) or {}, trie)
    spec = read_spec(trie.parent)
    identity, _ = pack_fingerprint(info, options)
    result = find_published(target, identity, execution)
    if result is None:
        work = (trie.parent if target == out else target / STAGING) / f"pack-{identity[:12]}"
        manifest = write_generation(trie, info, options, work, execution, link=target == out)
        result = publish_staged(target, work, manifest, spec, execution, started)
    if target != out:
        return result
    _keep_cache(out, read_sources(out, trie.parent), trie.parent, execution)
    # What an earlier command left is older than what has just been published.
    point_nowhere(out)
    clear_staging(out)
    return result


def _keep_cache(out: Path, used: Sequence[ReadSource], work: Path, execution: Execution) -> None:
    """Keep what the next build can use of what has been read, and nothing else.

    The generation is published by now: a disk that is too full to put splits together is no failure of it.
    """
    if execution.cache:
        with suppress(OSError):
            prune_cache(out / CACHE, used, work)
    else:
        shutil.rmtree(out / CACHE, ignore_errors=True)


def write_generation(
    source: Path, info: TrieInfo, options: PackOptions, work: Path, execution: Execution, *, link: bool
) -> Manifest:
    """Pack a trie into a folder of the staging area; arguments as `pack_trie`."""
    work.parent.mkdir(parents=True, exist_ok=True)
    return pack_trie(
        source,
        info,
        options,
        work,
        link=link,
        engine=execution.engine,
        memory=execution.memory or default_memory(),
        workers=execution.workers,
        listener=execution.listener,
    )


def publish_staged(
    out: Path,
    work: Path,
    manifest: Manifest,
    read: Mapping[str, Any],
    execution: Execution,
    started: float,
) -> BuildResult:
    """Publish a staged generation; what may differ between equal builds goes to ``run.json``.

    ``read`` says what was read and how its files looked, for the next build of the same corpus.
    """
    run = {
        "corpus": read.get("corpus", ""),
        "looked_for": read.get("looked_for", ""),
        "looked_at": read.get("looked_at", {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "host": platform.node(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "engine": execution.engine,
        "workers": execution.workers,
        "manifest_sha256": sha256_file(work / "manifest.json"),
    }
    with step("run-write"):
        (work / "run.json").write_bytes(seal_run(run))
    before = current_name(out)
    path, held = publish(out, work, manifest.fingerprint, keep=execution.keep)
    if before[6:] == path.name[6:] and before < path.name:  # the same build again: the one before is damaged
        held += remove_generation(out, before)
    note_held(held, execution)
    return BuildResult(path, manifest, False)


def note_held(names: Sequence[str], execution: Execution) -> None:
    """Tell which generations stay though more than enough are newer."""
    for name in names:
        execution.listener.note(f"generation {name} stays: it is being read")
