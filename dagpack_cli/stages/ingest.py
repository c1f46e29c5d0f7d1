"""Ingest: list the corpus, identify its files, read and tokenise them split by split."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from dagpack_cli.corpora import (
    BadRecords,
    OnBad,
    ReadCounts,
    ReadOptions,
    Source,
    choose_tokenizer,
    discover,
    holds_chats,
    parse_drop_rule,
    raise_bad,
    read_examples,
)
from dagpack_cli.errors import DataError, DiskError, PermissionDeniedError
from dagpack_cli.examples import SplitWriter, write_lines
from dagpack_cli.manifest import FORMAT_VERSION, IngestOptions, InputEntry, fingerprint, library_versions
from dagpack_cli.stages.receipts import Listener, read_receipt, write_receipt
from dagpack_cli.storage import sha256_file
from dagpack_cli.tokenizing import SymbolCollector, Tokenizer, load_tokenizer
from dagpack_cli.tokenizing.chat import Template
from dagpack_cli.tokenizing.stability import Stability
from dagpack_cli.tokenizing.templates import load_template

__all__ = ["IngestPlan", "ingest_splits", "plan_ingest"]

_SPLIT_BYTES = 64 << 20  # a fixed target: never a function of the number of workers
_SPEC = "spec.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What will be read, and the fingerprint that follows from it.

    Attributes:
        corpus: a folder or a file.
        sources: in canonical order.
        inputs: their names, sizes and checksums.
        ignored: (name, reason) of what was found and is not read.
        skipped: files left out because they are damaged, with ``--on-error skip``.
        splits: consecutive source numbers, one list a split.
        tokenizer: a specification for `load_tokenizer`, with its BOS and EOS.
        template: a specification for `load_template`, with its date; None where there are no conversations.
        template_sources: its texts by name; none for a built-in one.
        identity: of the tokenizer, and of the template.
        versions: of the libraries that matter.
        fingerprint: of the ingest.
    """

    corpus: Path
    sources: list[Source]
    inputs: list[InputEntry]
    ignored: list[list[str]]
    skipped: list[list[str]]
    splits: list[list[int]]
    tokenizer: tuple[str, str | None, str | None]
    template: tuple[str, str | None] | None
    template_sources: Mapping[str, str]
    identity: dict[str, Any]
    versions: dict[str, str]
    options: IngestOptions
    fingerprint: str


def read_options(options: IngestOptions) -> ReadOptions:
    """Return the options of the corpus readers for those of an ingest."""
    return ReadOptions(
        format=options.format,
        text_field=options.text_field,
        episode_field=options.episode_field,
        state_field=options.state_field,
        action_field=options.action_field,
        action_taken=options.action_taken,
        drop_rules=tuple(parse_drop_rule(rule) for rule in options.drop_transition),
        predict=options.predict,
        grid_tokens=options.grid_tokens,
        group_weight=options.group_weight,
        supervise=options.supervise,
        thinking=options.thinking,
        tool_calls=options.tool_calls,
        per_turn=options.per_turn,
        system=options.system,
        tools=options.tools,
    )


def plan_ingest(
    corpus: Path,
    out: Path,
    *,
    tokenizer: str,
    bos: str | None,
    eos: str | None,
    template: str,
    template_date: str | None,
    options: IngestOptions,
    known: Mapping[str, Sequence[Any]],
    workers: int,
    listener: Listener,
) -> IngestPlan:
    """List and identify the inputs of a build; nothing is written.

    Args:
        corpus: a folder or a file.
        out: the output, which is never input.
        tokenizer: as given: ``auto``, ``bytes``, ``symbols``, ``none`` or a path.
        bos: overrides the tokenizer's.
        eos: likewise.
        template: how conversations are written: ``auto``, ``builtin`` or a path.
        template_date: what a template takes for today.
        options: of the ingest.
        known: name -> [size, mtime, ctime, inode, sha256] of the last build; an input with equal
            numbers is not read again.
        workers: threads that read.
        listener: hears the progress.

    Raises:
        NoInputError: nothing usable is in the corpus.
        UsageError: the tokenizer does not fit what is there.
    """
    bad = BadRecords()
    on_bad: OnBad = bad if options.on_error == "skip" else raise_bad
    with _located(corpus):
        found = discover(corpus, exclude=out, options=read_options(options), on_bad=on_bad)
    spec = choose_tokenizer(found.inputs, tokenizer, grid_tokens=options.grid_tokens)
    loaded = load_tokenizer(spec, bos=bos, eos=eos)
    checksums = _checksums(found.inputs, known, workers, listener)
    inputs = [
        InputEntry(path=source.name, size=source.size, sha256=checksum)
        for source, checksum in zip(found.inputs, checksums, strict=True)
    ]
    versions = library_versions(huggingface=loaded.kind == "huggingface")
    identity = loaded.identity()
    written = None
    sources: Mapping[str, str] = {}
    if any(holds_chats(source.format) for source in found.inputs):
        written = (template, template_date)
        loaded_template = load_template(template, loaded, date=template_date)
        identity["chat_template"] = loaded_template.identity()
        sources = loaded_template.sources
        if loaded_template.note:
            listener.note(loaded_template.note)
    ignored = [list(pair) for pair in found.ignored]
    formats = [source.format for source in found.inputs]
    parts = (FORMAT_VERSION, versions, asdict(options), identity, [asdict(entry) for entry in inputs], formats)
    return IngestPlan(
        corpus=corpus,
        sources=found.inputs,
        inputs=inputs,
        ignored=ignored,
        skipped=[list(pair) for pair in bad.first],
        splits=_split(found.inputs),
        tokenizer=(spec, bos, eos),
        template=written,
        template_sources=sources,
        identity=identity,
        versions=versions,
        options=options,
        fingerprint=fingerprint(*parts, ignored),
    )


def _checksums(
    sources: Sequence[Source], known: Mapping[str, Sequence[Any]], workers: int, listener: Listener
) -> list[str]:
    def checksum(source: Source) -> str:
        entry = known.get(source.name)
        if entry is not None and list(entry[:4]) == identity_of(source):
            return str(entry[4])
        return sha256_file(source.path)

    with ThreadPoolExecutor(max_workers=workers) as pool:
        result = []
        for number, value in enumerate(pool.map(checksum, sources), 1):
            result.append(value)
            listener.progress("identify", number, len(sources))
    return result


def identity_of(source: Source) -> list[int]:
    """Return the numbers that say whether a file is the one that was read: size, times, inode."""
    return [source.size, source.mtime_ns, source.ctime_ns, source.inode]


def _split(sources: Sequence[Source]) -> list[list[int]]:
    """Return consecutive source numbers, a new split once a fixed number of bytes is reached."""
    splits: list[list[int]] = []
    size = 0
    for number, source in enumerate(sources):
        if not splits or (size + source.size > _SPLIT_BYTES and splits[-1]):
            splits.append([])
            size = 0
        splits[-1].append(number)
        size += source.size
    return splits


def ingest_splits(plan: IngestPlan, directory: Path, *, workers: int, listener: Listener) -> list[dict[str, Any]]:
    """Read every split that has no receipt yet; return the receipts in order.

    Args:
        plan: of `plan_ingest`.
        directory: of the staged build; split n goes to ``splits/n``.
        workers: processes; the result does not depend on them.
        listener: hears the progress.

    Raises:
        DataError: a bad record, unless the options say ``skip``; or an input changed while it was read.
    """
    _cached_tokenizer.cache_clear()  # a path may lead to something else than for the build before
    _cached_template.cache_clear()
    jobs = [
        (
            directory / "splits" / f"{number:05d}",
            [plan.sources[source] for source in split],
            plan.tokenizer,
            plan.template,
        )
        for number, split in enumerate(plan.splits)
    ]
    open_jobs = [job for job in jobs if (read_receipt(job[0]) or {}).get("sources") != _names(job[1])]
    done = len(jobs) - len(open_jobs)
    run = functools.partial(_read_split, options=plan.options, corpus=plan.corpus)
    for _ in _run(run, open_jobs, workers):
        done += 1
        listener.progress("read", done, len(jobs))
    receipts = [read_receipt(job[0]) for job in jobs]
    return [receipt for receipt in receipts if receipt is not None]


def _names(sources: Sequence[Source]) -> list[str]:
    return [source.name for source in sources]


def _run(function: Any, jobs: Sequence[Any], workers: int) -> Iterator[None]:
    """Call a function on every job: here, or in processes where that pays."""
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield function(job)
        return
    # Not fork: a copy of a process whose threads hold locks may never wake up.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_follow_parent)
    try:
        yield from pool.map(function, jobs)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for what is being read
        raise
    pool.shutdown()


def _follow_parent() -> None:
    """End this worker when its build does, however that ends; the build alone answers an interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


@functools.lru_cache(maxsize=2)
def _cached_tokenizer(spec: str, bos: str | None, eos: str | None) -> Tokenizer:
    return load_tokenizer(spec, bos=bos, eos=eos)


@functools.lru_cache(maxsize=2)
def _cached_template(spec: tuple[str, str | None, str | None], written: tuple[str, str | None]) -> Template:
    return load_template(written[0], _cached_tokenizer(*spec), date=written[1])


def _read_split(
    job: tuple[Path, list[Source], tuple[str, str | None, str | None], tuple[str, str | None] | None],
    *,
    options: IngestOptions,
    corpus: Path,
) -> None:
    """Read the files of one split into its folder, the receipt last."""
    directory, sources, spec, written = job
    shutil.rmtree(directory, ignore_errors=True)
    bad = BadRecords()
    on_bad: OnBad = bad if options.on_error == "skip" else bad.or_raise
    counts = ReadCounts()
    collector = SymbolCollector() if spec[0] == "symbols" else None
    reader: Tokenizer | SymbolCollector = collector if collector is not None else _cached_tokenizer(*spec)
    template = None if written is None else _cached_template(spec, written)
    if template is not None:
        template.stability = Stability()
    reading = read_options(options)
    formats: dict[str, list[int]] = {}
    silent: list[str] = []
    with SplitWriter(directory) as writer:
        for source in sources:
            before = counts.examples
            with _located(corpus):
                for example in read_examples(source, reader, reading, on_bad, template=template, counts=counts):
                    writer.add(example, source.name)
            after = os.stat(source.path)
            if [after.st_size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino] != identity_of(source):
                raise DataError(
                    str(source.path), "the file changed while it was read", hint="run the same command again"
                )
            made = counts.examples - before
            files, examples = formats.get(source.format, [0, 0])
            formats[source.format] = [files + 1, examples + made]
            if made == 0:
                silent.append(source.name)
    if collector is not None:
        write_lines(directory / "symbols.jsonl", collector.symbols)
    write_receipt(
        directory,
        {
            "sources": _names(sources),
            "records": counts.records,
            "bad_records": bad.count,
            "bad": [list(entry) for entry in bad.first],
            "dropped_transitions": counts.dropped_pairs,
            "rejected": counts.rejected,
            "formats": formats,
            "silent_files": len(silent),
            "silent": silent[:20],
            "stability": (Stability() if template is None else template.stability).to_json(),
        },
    )


class _located:  # used like a function, as contextlib's are
    """Put the corpus's path before the names in data errors, so that ``where`` can be clicked."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Complete the error on its way out."""
        if not isinstance(error, DataError | DiskError | PermissionDeniedError):
            return
        # A folder that cannot be listed is named with the corpus already.
        if not Path(error.where).is_absolute() and not error.where.startswith(str(self._corpus)):
            folder = self._corpus if self._corpus.is_dir() else self._corpus.parent
            error.where = str(folder / error.where)
