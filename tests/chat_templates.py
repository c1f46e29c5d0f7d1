"""Small chat templates, tokenizers and conversations that tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.messages import Message, ToolCall

__all__ = [
    "CHATML",
    "DATED",
    "DROPS_THINKING",
    "LLAMA",
    "MARKED",
    "MERGED_RESULTS",
    "PLAIN_TEXT",
    "agent_chat",
    "byte_level",
    "chat",
    "save_tokenizer",
]

_CHATML = """
{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- GENERATION %}
        {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- ENDGENERATION %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
""".strip()

MARKED = _CHATML.replace("- ENDGENERATION", "- endgeneration").replace("- GENERATION", "- generation")
CHATML = _CHATML.replace("{%- ENDGENERATION %}", "").replace("{%- GENERATION %}", "")

LLAMA = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unknown role ' + message.role) }}
    {%- endif %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}{{- raise_exception('Only one call at once!') }}{% endif %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- (message.tool_calls[0].function.arguments | tojson) + '}' }}
    {%- else %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{% endif %}
""".strip()

# The last turn alone keeps its thinking, and gets an empty one where there is none.
DROPS_THINKING = CHATML.replace(
    "{%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}",
    "{%- if loop.last %}{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n' }}{% endif %}",
)

DATED = "{{- 'Today: ' + strftime_now('%d %b %Y') + '\\n' }}" + CHATML

MERGED_RESULTS = CHATML.replace(
    "    {{- '<|im_start|>' + message.role + '\\n' }}\n",
    "    {%- if message.role != 'tool' or messages[loop.index0 - 1].role != 'tool' %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}{% else %}{{- '\\n' }}{% endif %}\n",
).replace(
    "        {{- message.content + '<|im_end|>' }}\n",
    "        {{- message.content }}\n"
    "        {%- if message.role == 'tool' and not loop.last and messages[loop.index0 + 1].role == 'tool' %}"
    "{% continue %}{% endif %}\n"
    "        {{- '<|im_end|>' }}\n",
)

# No control token at all.
PLAIN_TEXT = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{- 'BOT: ' + message.content + '\\n' }}
    {%- else %}{{- 'USER: ' + message.content + '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'BOT: ' }}{% endif %}
""".strip()

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<s>", "</s>")


def byte_level(specials: tuple[str, ...] = SPECIALS, merges: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return a tokenizer.json with a token for every byte, every merge and every one of ``specials``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    listed = [*alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(listed)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer.to_str().encode()


def save_tokenizer(folder: Path, template: Any = None, **config: Any) -> HuggingFaceTokenizer:
    """Return a byte-level tokenizer that was saved in a directory, with a template in its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(byte_level())
    fields = {"eos_token": "</s>", "bos_token": {"content": "<s>"}, **config}
    if template is not None:
        fields["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return HuggingFaceTokenizer((folder / "tokenizer.json").read_bytes(), label=str(folder), eos_id=None)


def chat(turns: int = 2, **fields: Any) -> list[Message]:
    """Return a conversation of some questions and answers; ``fields`` are those of every answer."""
    messages = [Message(role="system", content="Be good.")]
    for turn in range(turns):
        messages.append(Message(role="user", content=f"Question {turn}?"))
        messages.append(Message(role="assistant", content=f"Answer {turn}.", **fields))
    return messages


def agent_chat() -> list[Message]:
    """Return a conversation with a call and its result."""
    call = ToolCall("look", '{"at": "it", "n": 1}')
    return [
        Message(role="user", content="Look!"),
        Message(role="assistant", content="I look.", tool_calls=(call,)),
        Message(role="tool", content="Seen.", tool_name="look", tool_call_id="abc"),
        Message(role="assistant", content="It is there."),
        Message(role="user", content="Thanks."),
    ]
