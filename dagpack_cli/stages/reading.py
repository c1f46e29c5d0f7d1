"""Read the inputs of one split into its folder."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagpack_cli.corpora import BadRecords, IdBlock, OnBad, ReadCounts, Source, read_items
from dagpack_cli.examples import SplitWriter, write_lines
from dagpack_cli.failpoints import step
from dagpack_cli.manifest import IngestOptions
from dagpack_cli.stages.cache import SYMBOLS_FILE, finish_split
from dagpack_cli.stages.inputs import check_siblings, has_grown, located, read_options
from dagpack_cli.tokenizing import SymbolCollector, Tokenizer, load_tokenizer
from dagpack_cli.tokenizing.chat import Template
from dagpack_cli.tokenizing.stability import Stability
from dagpack_cli.tokenizing.templates import load_template

__all__ = ["SplitJob", "forget_tokenizers", "read_split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJob:
    """What a process needs to read some inputs.

    Attributes:
        directory: of the split; what is in it is removed first.
        sources: the inputs, with the SHA-256 of what is read of each, and a digest of all that reading it looks at.
        corpus: what their names are below.
        tokenizer: a specification for `load_tokenizer`, with its BOS and EOS.
        template: a specification for `load_template`, with its date; None where there are no conversations.
        options: of the ingest.
        reading: fingerprint of all that decides what reading gives.
    """

    directory: Path
    sources: Sequence[tuple[Source, str, str]]
    corpus: Path
    tokenizer: tuple[str, str | None, str | None]
    template: tuple[str, str | None] | None
    options: IngestOptions
    reading: str


@functools.lru_cache(maxsize=2)
def _cached_tokenizer(spec: str, bos: str | None, eos: str | None) -> Tokenizer:
    return load_tokenizer(spec, bos=bos, eos=eos)


@functools.lru_cache(maxsize=2)
def _cached_template(spec: tuple[str, str | None, str | None], written: tuple[str, str | None]) -> Template:
    return load_template(written[0], _cached_tokenizer(*spec), date=written[1])


def forget_tokenizers() -> None:
    """Load tokenizers and templates again when next needed: a path may lead to something else by now."""
    _cached_tokenizer.cache_clear()
    _cached_template.cache_clear()


def read_split(job: SplitJob) -> None:
    """Read the inputs of one split into its folder, the receipt last.

    Raises:
        DataError: a bad record, unless the options say ``skip``; or an input was rewritten meanwhile.
    """
    shutil.rmtree(job.directory, ignore_errors=True)
    facts: list[dict[str, Any]] = []
    symbols: list[bytes] = []
    with step("split-write"), SplitWriter(job.directory) as writer:
        for source, sha256, content in job.sources:
            with located(job.corpus):
                facts.append(_read_source(source, sha256, job, writer, symbols) | {"content": content})
    if job.tokenizer[0] == "symbols":
        with step("symbols-write"):
            write_lines(job.directory / SYMBOLS_FILE, symbols)
    finish_split(job.directory, job.reading, facts)


def _read_source(
    source: Source, sha256: str, job: SplitJob, writer: SplitWriter, symbols: list[bytes]
) -> dict[str, Any]:
    """Write the examples of one input and add its symbols; return what there is to know of it, see `ReadSource`."""
    bad, counts, stability = BadRecords(), ReadCounts(), Stability()
    on_bad: OnBad = bad if job.options.on_error == "skip" else bad.or_raise
    collector = SymbolCollector() if job.tokenizer[0] == "symbols" else None
    reader: Tokenizer | SymbolCollector = collector if collector is not None else _cached_tokenizer(*job.tokenizer)
    template = None if job.template is None else _cached_template(job.tokenizer, job.template)
    if template is not None:
        template.stability = stability
    first, tokens = writer.num_examples, 0
    options = read_options(job.options)
    for item in read_items(source, reader, options, on_bad, template=template, counts=counts):
        if isinstance(item, IdBlock):
            writer.add_block(item, source.name)
        else:
            writer.add(item, source.name)
        tokens += len(item.tokens)
    if writer.num_examples > first:
        check_siblings(source)
    found = [] if collector is None else collector.symbols
    symbols += found
    return {
        "name": source.name,
        "format": source.format,
        "first": first,
        "last": writer.num_examples,
        "tokens": tokens,
        "symbols": [len(symbols) - len(found), len(symbols)],
        "grown": has_grown(source, sha256) or bad.unfinished > 0,
        "records": counts.records,
        "bad_records": bad.count - bad.unfinished,
        "unfinished": bad.unfinished,
        "bad": [list(entry) for entry in bad.first],
        "dropped_transitions": counts.dropped_pairs,
        "rejected": counts.rejected,
        "stability": stability.to_json(),
    }
