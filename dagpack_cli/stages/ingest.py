"""Ingest: read and tokenise what has not been read before, split by split; find the rest in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dagpack_cli.corpora import Source
from dagpack_cli.manifest import fingerprint
from dagpack_cli.stages.cache import ReadSource, adopt_split, known_sources
from dagpack_cli.stages.inputs import IngestPlan, note_unfinished
from dagpack_cli.stages.reading import SplitJob, forget_tokenizers, read_split
from dagpack_cli.stages.receipts import Listener, read_receipt
from dagpack_cli.stages.workers import run_jobs

__all__ = ["ingest_sources"]

_SPLIT_BYTES = 64 << 20  # a fixed target: never a function of the number of workers


def ingest_sources(
    plan: IngestPlan, staged: Path, cache: Path, *, workers: int, listener: Listener
) -> list[ReadSource]:
    """Read every input that is not in the cache; return all of them, in canonical order.

    Args:
        plan: of `plan_ingest`.
        staged: the folder of the staged build, in which splits are written.
        cache: where they are moved when they are complete, on the same file system.
        workers: processes; the result does not depend on them.
        listener: hears the progress.

    Raises:
        DataError: a bad record, unless the options say ``skip``; or an input was rewritten while it was read.
    """
    forget_tokenizers()
    splits = staged / "splits"
    for path in sorted(splits.glob("*")):  # of a build that was ended: complete, but not in the cache yet
        if read_receipt(path) is not None:
            adopt_split(cache, path)
    keys = [
        (source.name, source.format, content) for source, content in zip(plan.sources, _contents(plan), strict=True)
    ]
    known = known_sources(cache, plan.reading, keys, listener)
    missing = [
        (source, entry.sha256, key[2])
        for source, entry, key in zip(plan.sources, plan.inputs, keys, strict=True)
        if key not in known
    ]
    jobs = [
        SplitJob(
            directory=splits / f"{number:05d}",
            sources=sources,
            corpus=plan.corpus,
            tokenizer=plan.tokenizer,
            template=plan.template,
            options=plan.options,
            reading=plan.reading,
        )
        for number, sources in enumerate(_split(missing))
    ]
    grown: list[str] = []
    for number, (job, _) in enumerate(zip(jobs, run_jobs(read_split, jobs, workers), strict=True), 1):
        directory = adopt_split(cache, job.directory)
        for facts in (read_receipt(directory) or {})["sources"]:
            source = ReadSource(directory, facts)
            known[source.key] = source
            if facts["grown"]:
                grown.append(facts["name"])
        listener.progress("read", number, len(jobs))
    note_unfinished(grown, listener)
    return [known[key] for key in keys]


def _contents(plan: IngestPlan) -> list[str]:
    """Return a digest of all that reading each input looks at: its own bytes, and those of its siblings."""
    own = {source.path: entry.sha256 for source, entry in zip(plan.sources, plan.inputs, strict=True)}
    folders: dict[Path, str] = {}
    contents = []
    for source in plan.sources:
        digest = own[source.path]
        if source.siblings:
            folder = source.path.parent
            if folder not in folders:  # of a damaged sibling, which has no digest, the numbers stand for it
                listed = [[one.name, own.get(folder / one.name, asdict(one))] for one in source.siblings]
                folders[folder] = fingerprint(sorted(listed, key=lambda pair: str(pair[0])))
            digest = fingerprint(digest, folders[folder])
        contents.append(digest)
    return contents


def _split(sources: Sequence[tuple[Source, str, str]]) -> list[list[tuple[Source, str, str]]]:
    """Return consecutive inputs, a new split once a fixed number of bytes is reached."""
    splits: list[list[tuple[Source, str, str]]] = []
    size = 0
    for job in sources:
        if not splits or size + job[0].size > _SPLIT_BYTES:
            splits.append([])
            size = 0
        splits[-1].append(job)
        size += job[0].size
    return splits
