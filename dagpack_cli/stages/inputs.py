"""Inputs: list the corpus, identify its files, and tell whether one has changed while it was read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dagpack_cli.corpora import (
    BadRecords,
    Discovery,
    OnBad,
    ReadOptions,
    Source,
    choose_tokenizer,
    discover,
    holds_chats,
    parse_drop_rule,
    raise_bad,
    refuse,
)
from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.files.sources import Sibling, known_as, table_kind
from dagpack_cli.corpora.files.streams import open_regular
from dagpack_cli.errors import DagpackError, DataError, DiskError, PermissionDeniedError
from dagpack_cli.manifest import FORMAT_VERSION, IngestOptions, InputEntry, fingerprint, library_versions
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.tokenizing import load_tokenizer
from dagpack_cli.tokenizing.templates import load_template

__all__ = [
    "IngestPlan",
    "check_siblings",
    "has_grown",
    "located",
    "note_unfinished",
    "plan_ingest",
    "read_options",
    "settled",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What will be read, and the fingerprint that follows from it.

    Attributes:
        corpus: a folder or a file.
        sources: in canonical order.
        inputs: their names, sizes and checksums.
        ignored: (name, reason) of what was found and is not read.
        skipped: files left out because they are damaged, with ``--on-error skip``.
        tokenizer: a specification for `load_tokenizer`, with its BOS and EOS.
        template: a specification for `load_template`, with its date; None where there are no conversations.
        template_sources: its texts by name; none for a built-in one.
        identity: of the tokenizer, and of the template.
        versions: of the libraries that matter.
        reading: fingerprint of all that decides what reading an input gives, but for the input.
        fingerprint: of the ingest.
    """

    corpus: Path
    sources: list[Source]
    inputs: list[InputEntry]
    ignored: list[list[str]]
    skipped: list[list[str]]
    tokenizer: tuple[str, str | None, str | None]
    template: tuple[str, str | None] | None
    template_sources: Mapping[str, str]
    identity: dict[str, Any]
    versions: dict[str, str]
    options: IngestOptions
    reading: str
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
        limits=_limits(options),
    )


_LIMITS = tuple(Limits.__dataclass_fields__)


def _limits(options: IngestOptions) -> Limits:
    given = {name: getattr(options, name) for name in _LIMITS}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def settled(options: IngestOptions) -> IngestOptions:
    """Return the options without the limits that cannot have changed a result: they only end a build, or are usual."""
    usual = asdict(DEFAULT_LIMITS)
    changes: dict[str, Any] = {
        name: None for name in _LIMITS if options.on_error != "skip" or getattr(options, name) == usual[name]
    }
    return replace(options, **changes)


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
        known: of the last build with the same options: name -> what `known_as` says, and the SHA-256; an
            input that is still so is not opened.
        workers: threads that read.
        listener: hears the progress.

    Raises:
        NoInputError: nothing usable is in the corpus.
        UsageError: the tokenizer does not fit what is there.
    """
    bad = BadRecords()
    on_bad: OnBad = bad if options.on_error == "skip" else raise_bad
    with located(corpus):
        looked = {name: entry[:-1] for name, entry in known.items() if isinstance(entry, list)}
        found = discover(corpus, exclude=out, options=read_options(options), on_bad=on_bad, known=looked)
    spec = choose_tokenizer(found.inputs, tokenizer, grid_tokens=options.grid_tokens)
    loaded = load_tokenizer(spec, bos=bos, eos=eos)
    with located(corpus):
        inputs = _identify(found, known, workers, listener, on_bad)
    note_unfinished(found.unfinished, listener)
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
    options = settled(options)
    decisive = FORMAT_VERSION, versions, asdict(options), identity
    parts = (*decisive, [entry.to_json() for entry in inputs], formats)
    return IngestPlan(
        corpus=corpus,
        sources=found.inputs,
        inputs=inputs,
        ignored=ignored,
        skipped=[list(pair) for pair in bad.first],
        tokenizer=(spec, bos, eos),
        template=written,
        template_sources=sources,
        identity=identity,
        versions=versions,
        options=options,
        reading=fingerprint(*decisive),
        fingerprint=fingerprint(*parts, ignored),
    )


def _identify(
    found: Discovery, known: Mapping[str, Sequence[Any]], workers: int, listener: Listener, on_bad: OnBad
) -> list[InputEntry]:
    """Return the identity of what is read of every input; one that is gone by now goes to ``on_bad``."""

    def as_known(source: Source) -> str:
        entry = known.get(source.name)
        return str(entry[-1]) if isinstance(entry, list) and entry[:-1] == known_as(source) else ""

    def identify(source: Source) -> str | DagpackError:
        try:
            return _digest(source)
        except DagpackError as error:
            return error

    entries, left = [], []
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        given = [as_known(source) for source in found.inputs]
        unknown = pool.map(identify, [source for source, value in zip(found.inputs, given, strict=True) if not value])
        values = (value or next(unknown) for value in given)
        for source, value in zip(found.inputs, values, strict=True):
            if isinstance(value, str):
                entries.append(InputEntry(path=source.name, size=source.size, sha256=value))
                left.append(source)
            else:
                refuse(value, on_bad)
                found.ignored.append((source.name, value.found))
            listener.progress("identify", len(left), len(found.inputs))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal or a failure waits for no large file
    if len(left) < len(found.inputs):
        found.inputs = left
        found.ignored.sort(key=lambda item: item[0].encode("utf-8", "surrogatepass"))
    return entries


def _digest(source: Source) -> str:
    """Return the SHA-256 of what is read of a file, in hexadecimal.

    Raises:
        DataError: the file is shorter by now, or no file any more; NoInputError and others as `open_regular`.
    """
    state, left = hashlib.sha256(), source.size
    with open_regular(source.path, source.name) as file:
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            state.update(data)
            left -= len(data)
    if left:
        raise _rewritten(source)
    return state.hexdigest()


def _rewritten(source: Source) -> DataError:
    expected = "files may grow while they are read, but what was there stays"
    return DataError(
        source.name, "the file was rewritten while it was read", expected, hint="run the same command again"
    )


def has_grown(source: Source, sha256: str) -> bool:
    """Return whether a file that has been read has changed since it was listed, but for what was read.

    Raises:
        DataError: what was read is not what stands there now.
    """
    try:
        after = os.stat(source.path)
    except OSError:
        raise _rewritten(source) from None
    size = source.size + source.unfinished
    if [after.st_size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino] == [size, *_identity_of(source)[1:]]:
        return False
    # Of a table all is read, however long it is by now.
    grown = after.st_size != size
    same = stat.S_ISREG(after.st_mode) and after.st_ino == source.inode
    if not same or (grown and table_kind(source.path, source.name)) or _digest(source) != sha256:
        raise _rewritten(source)
    return grown


def check_siblings(source: Source) -> None:
    """Raise `DataError` where a file that was read with another one is not as it was when the corpus was listed."""
    if any(Sibling.of(source.path.parent / sibling.name) != sibling for sibling in source.siblings):
        raise _rewritten(source)


def note_unfinished(names: Sequence[str], listener: Listener) -> None:
    """Tell of inputs that were still being written, the first by name."""
    if names:
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        listener.note(f"{names[0]}{more}: still being written, read up to the last whole record")


def _identity_of(source: Source) -> list[int]:
    """Return the numbers that say whether a file is the one that was read: bytes read, times, inode."""
    return [source.size, source.mtime_ns, source.ctime_ns, source.inode]


class located:  # used like a function, as contextlib's are
    """Put the corpus's path before the names in data errors, so that ``where`` can be clicked."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus
        self._folder = corpus if corpus.is_dir() else corpus.parent  # as it is now, whatever becomes of it

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Complete the error on its way out."""
        if not isinstance(error, DataError | DiskError | PermissionDeniedError):
            return
        # A folder that cannot be listed is named with the corpus already.
        if not Path(error.where).is_absolute() and not error.where.startswith(str(self._corpus)):
            error.where = str(self._folder / error.where)
