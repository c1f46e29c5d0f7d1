"""What the values of options become: the frozen option classes that a manifest stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagpack_cli.cli.idle import (
    refuse_idle_packing,
    refuse_idle_reading,
    refuse_idle_splitting,
    refuse_idle_template,
)
from dagpack_cli.console import Console
from dagpack_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
    from dagpack_cli.pipeline import Execution, TokenizerChoice

__all__ = ["given", "make_execution", "make_ingest_options", "make_pack_options", "make_tokenizer", "make_trie_options"]


def make_ingest_options(values: dict[str, Any]) -> IngestOptions:
    """Return how a corpus is read."""
    from dagpack_cli.manifest import IngestOptions

    refuse_idle_reading(values)
    episode = values["episode_field"]
    return IngestOptions(
        format=values["format"],
        on_error=values["on_error"].value,
        text_field=values["text_field"],
        episode_field=None if episode == "none" else episode,
        state_field=values["state_field"],
        action_field=values["action_field"],
        action_taken=values["action_taken"],
        drop_transition=tuple(values["drop_transition"] or ()),
        predict=values["predict"].value,
        grid_tokens=values["grid_tokens"],
        group_weight=values["group_weight"].value,
        supervise=values["supervise"].value,
        thinking=values["thinking"],
        tool_calls=values["tool_calls"],
        per_turn=values["per_turn"],
        system=_text_of("--system", values["system"], _SYSTEM),
        tools=_tools_of(values["tools"]),
        max_line_bytes=values["max_line_bytes"],
        max_decompressed_bytes=values["max_decompressed_bytes"],
        max_ratio=values["max_ratio"],
        max_depth=values["max_depth"],
    )


_SYSTEM, _TOOLS = "a text file with the system prompt", "a file with a JSON list of tools, as chat requests have them"


def _text_of(option: str, path: Path | None, expected: str) -> str:
    """Return the text of a small file that an option names."""
    if path is None:
        return ""
    from dagpack_cli.errors import NoInputError

    where, hint = f"{option} {path}", f"correct {path}, or leave {option} out"
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise NoInputError(where, "does not exist", expected, hint=f"name a file: {option} FILE") from None
    except IsADirectoryError:
        raise UsageError(where, "is a directory", expected, hint=f"name a file: {option} FILE") from None
    except UnicodeDecodeError as error:
        raise UsageError(where, f"byte {error.start + 1:,} is not UTF-8", expected, hint=hint) from None
    if not text.strip():
        raise UsageError(where, "is empty", expected, hint=hint)
    return text


def _tools_of(path: Path | None) -> str:
    """Return the tools in a file as JSON text."""
    text = _text_of("--tools", path, _TOOLS)
    if text:
        from dagpack_cli.corpora import tools_of

        where, hint = f"--tools {path}", f"correct {path}, or leave --tools out"
        try:
            tools = tools_of(text, where)
        except DataError as error:
            raise DataError(where, error.found, _TOOLS, hint=hint) from None
        if not all(isinstance(tool, dict) for tool in tools):
            raise DataError(where, "a tool is no JSON object", _TOOLS, hint=hint)
    return text


def make_trie_options(values: dict[str, Any], layout: str) -> TrieOptions:
    """Return how the trie is built; refuse a merge that the layout cannot have."""
    from dagpack_cli.manifest import TrieOptions
    from dagpack_cli.pipeline import check_merge

    refuse_idle_splitting(values)
    root_id = values["virtual_root_id"]
    root = str(root_id) if root_id is not None else "auto" if values["virtual_root"] else None
    return TrieOptions(
        merge=check_merge(values["merge"], layout),
        virtual_root=root,
        strict_markov=values["strict_markov"],
        min_shared=values["min_shared"],
        val_fraction=values["val_fraction"],
        seed=values["seed"],
    )


def make_pack_options(values: dict[str, Any], merge: str) -> PackOptions:
    """Return how windows are packed; what was merged decides the objective that is not given."""
    from dagpack_cli.manifest import PackOptions

    refuse_idle_packing(values)
    objective = values["objective"]
    return PackOptions(
        seq_len=values["seq_len"],
        window_len=values["window_len"],
        layout=values["layout"].value,
        on_long=values["on_long"].value,
        prune=values["prune"],
        polish=values["polish"],
        objective=("unique" if merge == "state" else "counted") if objective is None else objective.value,
        shard_format=values["shard_format"].value,
        compression_level=values["compression_level"],
    )


def make_execution(values: dict[str, Any], console: Console) -> Execution:
    """Return how the work is done, which no byte of the result depends on."""
    from dagpack_cli.memory import parse_memory
    from dagpack_cli.pipeline import Execution

    return Execution(
        workers=values["workers"],
        engine=values["engine"].value,
        rehash=values.get("rehash", False),
        keep=values.get("keep", 2),
        wait=values.get("wait", 0.0),
        memory=None if values.get("memory") is None else parse_memory(values["memory"]),
        cache=values.get("cache", True),
        listener=console,
    )


def make_tokenizer(values: dict[str, Any]) -> TokenizerChoice:
    """Return which tokenizer and chat template."""
    from dagpack_cli.pipeline import TokenizerChoice

    refuse_idle_template(values)
    return TokenizerChoice(
        spec=values["tokenizer"],
        bos=values["bos"],
        eos=values["eos"],
        template=values["chat_template"],
        template_date=values["template_date"],
    )


def given(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return those of some options that were given."""
    return {name: values[name] for name in names if values[name] is not None and values[name] is not False}
