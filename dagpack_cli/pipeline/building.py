"""The commands that read a corpus: build, and its first two stages by themselves."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from dagpack_cli.corpora.files.sources import known_as
from dagpack_cli.errors import DagpackError, NoInputError, UsageError
from dagpack_cli.failpoints import step
from dagpack_cli.manifest import (
    IngestOptions,
    PackOptions,
    TrieOptions,
)
from dagpack_cli.memory import default_memory
from dagpack_cli.pipeline.current import find_unchanged, known_inputs, looked_for
from dagpack_cli.pipeline.execution import BuildResult, Execution, TokenizerChoice
from dagpack_cli.pipeline.publishing import note_held, pack_staged
from dagpack_cli.pipeline.staging import SPEC, clear_staging, locked, point_to, pointed_stage, read_sources, read_spec
from dagpack_cli.stages.cache import are_whole
from dagpack_cli.stages.dedup import dedup_sources
from dagpack_cli.stages.ingest import ingest_sources
from dagpack_cli.stages.inputs import IngestPlan, plan_ingest
from dagpack_cli.stages.ledger import THE_CORPUS
from dagpack_cli.stages.receipts import read_receipt, write_receipt
from dagpack_cli.storage import (
    CACHE,
    STAGING,
    canonical_json,
    remove_leftovers,
    write_atomic,
)

__all__ = ["build", "dedup", "ingest"]


def build(
    corpus: Path,
    out: Path,
    *,
    tokenizer: TokenizerChoice,
    ingest_options: IngestOptions,
    trie_options: TrieOptions,
    pack_options: PackOptions,
    execution: Execution,
) -> BuildResult:
    """Build a corpus into an output directory, or find that nothing has changed.

    Raises:
        DagpackError: of the kind that fits; nothing is published then, and the previous generation,
            if there is one, stays current.
    """
    started = time.time()
    _check_corpus(corpus, out)
    with locked(out, execution):
        plan = _plan(corpus, out, tokenizer, ingest_options, execution)
        if (current := find_unchanged(out, plan, trie_options, pack_options, execution)) is not None:
            clear_staging(out)
            note_held(remove_leftovers(out, execution.keep), execution)
            return current
        clear_staging(out, keep=plan.fingerprint[:12])  # what other inputs or options left is in nobody's way
        staged = _ingest(plan, out, execution)
        trie = _merge(out, staged, trie_options, execution)
        try:
            return pack_staged(trie, out, out, pack_options, execution, started)
        except DagpackError as error:
            if error.where == THE_CORPUS:
                error.where = str(corpus)
            raise


def ingest(
    corpus: Path, out: Path, *, tokenizer: TokenizerChoice, ingest_options: IngestOptions, execution: Execution
) -> Path:
    """Read and tokenise a corpus into the staging area of an output; return the staged folder."""
    _check_corpus(corpus, out)
    with locked(out, execution):
        staged = _ingest(_plan(corpus, out, tokenizer, ingest_options, execution), out, execution)
        point_to(out, staged)
        return staged


def dedup(out: Path, *, trie_options: TrieOptions, execution: Execution) -> Path:
    """Build the tries of what was ingested last; return their folder.

    Raises:
        NoInputError: nothing has been ingested.
    """
    hint = f"dagpack ingest CORPUS {out}, then this again"
    if not out.is_dir():
        raise NoInputError(str(out), "no such directory", "a finished ingest", hint=hint)
    with locked(out, execution):
        pointed = pointed_stage(out)
        if pointed is None:
            raise NoInputError(str(out), "nothing ingested", "a finished ingest", hint=hint)
        staged = pointed if (pointed / SPEC).is_file() else pointed.parent
        if not are_whole(read_sources(out, staged)):
            raise NoInputError(str(out / CACHE), "what was ingested is gone or damaged", "all of it", hint=hint)
        trie = _merge(out, staged, trie_options, execution)
        point_to(out, trie)
        return trie


def _merge(out: Path, staged: Path, options: TrieOptions, execution: Execution) -> Path:
    """Build the tries of a finished ingest; return their folder."""
    return dedup_sources(
        staged,
        read_spec(staged),
        read_sources(out, staged),
        options,
        engine=execution.engine,
        memory=execution.memory or default_memory(),
        workers=execution.workers,
        listener=execution.listener,
    )


def _check_corpus(corpus: Path, out: Path) -> None:
    """Raise before anything is made of OUT where the corpus is a mistake."""
    if not corpus.exists():
        raise NoInputError(str(corpus), "does not exist", "a folder or a file")
    if out.exists() and corpus.samefile(out):
        raise UsageError("OUT", f"{out} is CORPUS too", "another folder", hint="name a new folder for the output")


def _plan(
    corpus: Path, out: Path, tokenizer: TokenizerChoice, options: IngestOptions, execution: Execution
) -> IngestPlan:
    return plan_ingest(
        corpus,
        out,
        tokenizer=tokenizer.spec,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        template=tokenizer.template,
        template_date=tokenizer.template_date,
        options=options,
        known={} if execution.rehash else known_inputs(corpus, out, options),
        workers=execution.workers,
        listener=execution.listener,
    )


def _ingest(plan: IngestPlan, out: Path, execution: Execution) -> Path:
    staged = out / STAGING / plan.fingerprint[:12]
    if read_receipt(staged) is None or not are_whole(read_sources(out, staged)):
        staged.mkdir(parents=True, exist_ok=True)
        looked_at = {
            source.name: [*known_as(source), entry.sha256]
            for source, entry in zip(plan.sources, plan.inputs, strict=True)
        }
        spec = {
            "fingerprint": plan.fingerprint,
            "corpus": str(plan.corpus.resolve()),
            "versions": plan.versions,
            "options": asdict(plan.options),
            "chat_template": plan.identity.get("chat_template"),
            "chat_template_sources": dict(plan.template_sources),
            "tokenizer": [_absolute(plan.tokenizer[0]), *plan.tokenizer[1:]],
            "inputs": [entry.to_json() for entry in plan.inputs],
            "ignored": plan.ignored,
            "skipped": plan.skipped,
            "looked_for": looked_for(plan.options),
            "looked_at": looked_at,
        }
        with step("spec-write"):
            write_atomic(staged / SPEC, canonical_json(spec))
        sources = ingest_sources(plan, staged, out / CACHE, workers=execution.workers, listener=execution.listener)
        listed = [[source.directory.name, dict(source.facts)] for source in sources]
        write_receipt(staged, {"sources": listed})
    return staged


def _absolute(spec: str) -> str:
    return spec if spec in ("bytes", "symbols", "grid", "none") else str(Path(spec).resolve())
