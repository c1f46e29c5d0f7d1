"""What it costs to render and tokenise conversations.

Three questions: how close the encoder of pieces comes to the tokenizer itself on texts that are all
different; what ten growing snapshots of one session cost against their last; and what a template
costs that is built in, one with ``{% generation %}`` marks, and one whose prefixes must be checked.
Alone, and with a tokenizer of one's own: ``python -m tests.bench.bench_rendering TOKENIZER [--repeats N]``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dagpack_cli.tokenizing import HuggingFaceTokenizer, load_tokenizer
from dagpack_cli.tokenizing.chat import PieceEncoder, Template, targets_of
from dagpack_cli.tokenizing.messages import Message, ToolCall
from dagpack_cli.tokenizing.templates import load_template

from .measure import in_turn, print_table

__all__ = ["main", "rendering", "small_tokenizer"]

_TEMPLATE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
""".strip()

_WORDS = ("alpha", "beta", "def f(x):\n", "    return", "gamma,", "{", "}\n", "the", "file", "is")
_MESSAGES = 900
_SNAPSHOTS = 10


def session(messages: int, seed: int) -> list[Message]:
    """Return an agent's session: a question, then calls and results in turn, every text different."""
    chance = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(f"{chance.choice(_WORDS)}{chance.randrange(1000)}" for _ in range(words))

    listed = [Message(role="system", content=text(400))]
    while len(listed) < messages:
        asked = len(listed) % 20 == 1
        listed.append(Message(role="user" if asked else "tool", content=text(60 if asked else 250)))
        call = ToolCall("run", json.dumps({"command": text(30)}))
        listed.append(Message(role="assistant", content=text(40), tool_calls=(call,)))
    return listed[:messages]


def small_tokenizer() -> HuggingFaceTokenizer:
    """Return a byte-level tokenizer with ChatML tokens, learned from such a session."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4_000, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator((message.content for message in session(200, 0)), trainer)
    specials = ("<|im_start|>", "<|im_end|>")
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return HuggingFaceTokenizer(inner.to_str().encode(), label="small", eos_id=None)


def _encode(tokenizer: HuggingFaceTokenizer, template: Template, conversations: list[list[Message]]) -> int:
    encoder = PieceEncoder(tokenizer)
    return sum(
        len(encoder.encode(template.pieces(messages, (), targets_of(messages))).ids) for messages in conversations
    )


def _pieces(tokenizer: HuggingFaceTokenizer, path: str, messages: list[Message]) -> Any:
    return load_template(path, tokenizer).pieces(messages, (), targets_of(messages))


def rendering(tokenizer: HuggingFaceTokenizer, repeats: int) -> None:
    """Print what rendering and encoding cost in CPU seconds."""
    builtin = load_template("builtin", tokenizer)
    whole = session(_MESSAGES, 1)
    texts = [piece.value for piece in builtin.pieces(whole, (), targets_of(whole)) if isinstance(piece.value, str)]
    snapshots = [whole[: _MESSAGES * step // _SNAPSHOTS] for step in range(1, _SNAPSHOTS + 1)]
    raw = tokenizer._tokenizer
    sides: dict[str, Callable[[], Any]] = {
        "raw": lambda: raw.encode_batch_fast(list(dict.fromkeys(texts)), add_special_tokens=False),
        "once": partial(_encode, tokenizer, builtin, [whole]),
        "snapshots": partial(_encode, tokenizer, builtin, snapshots),
        "apart": lambda: sum(_encode(tokenizer, builtin, [messages]) for messages in snapshots),
    }
    found = in_turn(sides, repeats)
    tokens = found["once"][1]
    rows = [
        (
            "distinct texts",
            f"{tokens:,}",
            f"{found['once'][0]:.2f}",
            f"{found['raw'][0] / found['once'][0]:.2f} of raw",
        ),
        (
            f"{_SNAPSHOTS} snapshots of a session",
            f"{found['snapshots'][1]:,}",
            f"{found['snapshots'][0]:.2f}",
            f"{found['apart'][0] / found['snapshots'][0]:.1f} x less than each apart",
        ),
    ]
    print_table(
        "tokenising (CPU; targets: at least 0.9 of the tokenizer's own speed, snapshots at least 5 x less)",
        ("", "tokens", "CPU s", "speed"),
        rows,
    )
    unmarked = _TEMPLATE.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    with TemporaryDirectory(prefix="dagpack-bench-") as temporary:
        paths = {"built in": "builtin"}
        for name, source in (("generation marks", _TEMPLATE), ("prefixes checked", unmarked)):
            paths[name] = str(Path(temporary, f"{len(paths)}.jinja"))
            Path(paths[name]).write_text(source)
            load_template(paths[name], tokenizer)  # imports transformers
        written = in_turn({name: partial(_pieces, tokenizer, path, whole) for name, path in paths.items()}, repeats)
        print_table(
            f"rendering a conversation of {_MESSAGES:,} messages (CPU, load included)",
            ("template", "CPU s", "of tokenising it"),
            [(name, f"{spent:.2f}", f"{spent / found['once'][0]:.2f}") for name, (spent, _) in written.items()],
        )


def main() -> None:
    """Measure with the tokenizer that is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_rendering", description=__doc__)
    parser.add_argument("tokenizer", help="a Hugging Face tokenizer directory with ChatML tokens")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side; the median counts")
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.tokenizer)
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        parser.error(f"{given.tokenizer} is no Hugging Face tokenizer")
    rendering(tokenizer, given.repeats)


if __name__ == "__main__":
    main()
