"""Corpora: files are discovered, told apart by content, and read into examples of tokens.

Read in this order: ``discover`` lists the files (`Source`) and names what it ignores;
``choose_tokenizer`` says what reads them; ``read_examples`` turns one file into `Example` objects.
In between, a format's module turns rows into `Record` objects, which hold text, messages, ids or
JSON values, and ``reading`` tokenises them in batches. A new format is one module and one line
in ``formats``.

What is wrong with a record goes to a callable: ``raise_bad`` stops there, a `BadRecords` counts
it and goes on.
"""

from __future__ import annotations

from dagpack_cli.corpora.discover import Discovery, discover
from dagpack_cli.corpora.files.growing import STILL_WRITTEN
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.formats import choose_tokenizer, holds_chats, kind_of
from dagpack_cli.corpora.games.droprules import DropRule, parse_drop_rule
from dagpack_cli.corpora.messages import tools_of
from dagpack_cli.corpora.options import FORMATS, ReadOptions
from dagpack_cli.corpora.reading import read_examples, read_items
from dagpack_cli.corpora.records import BadRecords, Example, IdBlock, OnBad, ReadCounts, raise_bad, refuse

__all__ = [
    "FORMATS",
    "STILL_WRITTEN",
    "BadRecords",
    "Discovery",
    "DropRule",
    "Example",
    "IdBlock",
    "OnBad",
    "ReadCounts",
    "ReadOptions",
    "Source",
    "choose_tokenizer",
    "discover",
    "holds_chats",
    "kind_of",
    "parse_drop_rule",
    "raise_bad",
    "read_examples",
    "read_items",
    "refuse",
    "tools_of",
]
