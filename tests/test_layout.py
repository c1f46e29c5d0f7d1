"""The house: imports go down one list, pure rooms stay pure, heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "dagpack_cli"

# A room may import the rooms above it, and its own modules.
ROOMS = [
    "errors",
    "ranges",
    "preorder",
    "failpoints",
    "storage",
    "locks",
    "arrays",
    "sequences",
    "native",
    "memory",
    "manifest",
    "tokenizing",
    "corpora",
    "examples",
    "provenance",
    "trie",
    "packing",
    "shards",
    "partitions",
    "claims",
    "profile",
    "lints",
    "comparison",
    "stages",
    "pipeline",
    "remote",
    "stats",
    "verify",
    "export",
    "show",
    "drawing",
    "training",
    "console",
    "options",
    "cli",
]
PURE = [
    "preorder",
    "sequences",
    "packing",
    "partitions",
    "claims",
    "profile",
    "lints",
    "comparison",
    "shards.window",
    "shards.siblings",
    "shards.merged",
    "shards.unmerged",
    "training.balance",
]
IMPURE = {"os", "pathlib", "time", "random", "tempfile", "shutil", "subprocess", "tqdm", "logging", "datetime"}
# Which modules may import a library, by the start of their dotted name.
OWNERS = {
    "numba": ("trie.kernels", "packing.kernels", "shards.kernels"),
    "typer": ("cli", "options"),
    "tqdm": ("console",),
    "torch": ("training",),
    "transformers": ("training", "tokenizing.jinja"),
    "jinja2": ("tokenizing.jinja",),
    "tokenizers": ("tokenizing.huggingface",),
    "fsspec": ("remote.stores",),
    "pyarrow": (
        "native",
        "corpora.files.parquet_rows",
        "corpora.files.arrow_rows",
        "corpora.files.table_batch",
        "examples",
        "export.parquet",
        "provenance",
        "remote.stores",
        "shards.parquet",
        "tokenizing.symbol_table",
    ),
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name not in ("__init__", "__main__"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they go"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("name", "tree"), list(_modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_go_down_the_list(name: str, tree: ast.Module) -> None:
    """A module imports only rooms that stand above its own in the house."""
    room = name.split(".")[0]
    assert room in ROOMS, f"{room} has no place in the house"
    for target in _imports(tree):
        parts = target.split(".")
        if parts[0] == "dagpack_cli" and len(parts) > 1 and parts[1] in ROOMS:
            assert parts[1] == room or ROOMS.index(parts[1]) < ROOMS.index(room), f"{name} imports {target}"


@pytest.mark.parametrize(("name", "tree"), list(_modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_libraries_stay_in_their_rooms(name: str, tree: ast.Module) -> None:
    """Each heavy library is imported only by the modules that own it, and pure rooms touch no outside world."""
    for target in _imports(tree):
        library = target.split(".")[0]
        if library in OWNERS:
            assert name.startswith(OWNERS[library]), f"{name} imports {target}"
        if name.startswith(tuple(PURE)):
            assert library not in IMPURE, f"{name} imports {target}"


def test_importing_the_package_stays_light() -> None:
    """``import dagpack_cli`` loads no torch, numba, transformers, typer, pyarrow or numpy."""
    code = (
        "import sys, dagpack_cli; heavy = ('torch', 'numba', 'transformers', 'typer', 'pyarrow', 'numpy'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_small_inputs_never_wait_for_a_compiler() -> None:
    """The trie, the packers and the shards of a small corpus run without numba being imported."""
    code = (
        "import sys, numpy as np; from dagpack_cli.trie import build_trie; from dagpack_cli.packing import *; "
        "build_trie(np.arange(10, dtype=np.int32), np.array([0, 5, 10])); "
        "forest = Forest.from_parents(np.array([-1, 0]), np.array([1, 1])); bundle_leaves(forest, 4); "
        "walk_forest(forest, 4); lower_bound(forest, 4); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
