"""The README is true: its commands run and print what it says, its help is current, its table is the code's.

Run as a script it writes the section of commands anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COMMANDS = [
    "build", "ingest", "dedup", "pack", "stats", "verify", "plan", "show", "draw", "export", "train", "check", "path",
]  # fmt: skip
BEGIN, END = "<!-- commands: written by `python tests/test_readme.py` -->\n", "<!-- end of commands -->\n"
# A slow machine is told how a command goes on.
PROGRESS = re.compile(r"^[a-z]+: [\d,]+ of [\d,]+\n", re.MULTILINE)
# Why a block of commands is not run here.
EXCUSES = {
    "make demo": "it makes a virtual environment; what it runs is run below",
    "make test": "it is how this test is run",
    "pip install dagpack-cli": "it needs a package index",
    "dagpack build s3://lake/sessions s3://lake/windows --workers 16": "it needs a bucket; test_remote has one",
    "dagpack stats s3://lake/windows": "likewise",
    "dagpack train --shards s3://lake/windows --steps 1000": "likewise",
}


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def commands() -> str:
    """Return the section of commands as the code has it."""
    lines = []
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "dagpack_cli", command, "--help"], capture_output=True, text=True, check=True
        )
        title = f"<details><summary><code>dagpack {command}</code></summary>"
        lines.append(f"{title}\n\n```\n{done.stdout.strip()}\n```\n\n</details>\n")
    return "\n".join(lines)


def matches(expected: str, found: str) -> bool:
    """Tell whether output is as written, where ``...`` stands for anything."""
    pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", expected.strip()))
    return re.fullmatch(pattern, found.strip(), flags=re.DOTALL) is not None


def test_the_tour_prints_what_it_says(tmp_path: Path) -> None:
    """Every command of every console block runs, in order, and its output is the README's; then every Python block.

    One test, for the blocks run where the tour has been, and tests may run anywhere.
    """
    shutil.copytree(ROOT / "fixtures", tmp_path / "fixtures")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    followed = 0
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            if command in EXCUSES:
                continue
            done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
            output = done.stdout + PROGRESS.sub("", done.stderr)
            assert matches(expected, output), f"{command} printed:\n{output}"
            followed += 1
    assert followed >= 6
    for block in blocks("python"):
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)


def test_the_section_of_commands_is_current() -> None:
    """The help in the README is what the commands print."""
    text = README.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == commands()


def test_exit_codes_and_rooms_are_documented() -> None:
    """Every exit code of the errors, and every room of the house, is in a table."""
    from test_layout import ROOMS

    from dagpack_cli import errors

    text = README.read_text(encoding="utf-8")
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.DagpackError):
            assert re.search(rf"^\| {kind.exit_code} \| ", text, flags=re.MULTILINE), name
    for room in ROOMS:
        assert f"`{room}`" in text or f"`{room}/`" in text, room


def test_recipes_name_only_options_that_exist() -> None:
    """Every command in the recipes for cron and systemd exists, and takes every option it is given there."""
    lines = [line for language in ("crontab", "ini") for block in blocks(language) for line in block.splitlines()]
    found = [match.groups() for line in lines if (match := re.search(r"\bdagpack ([a-z]+) (.+)", line))]
    assert len(found) >= 3
    for command, rest in found:
        done = subprocess.run(
            [sys.executable, "-m", "dagpack_cli", command, "--help"], capture_output=True, text=True, check=True
        )
        for option in re.findall(r"--[a-z-]+", rest):
            assert re.search(rf"^  {option}\b", done.stdout, flags=re.MULTILINE), f"{command} {option}"


def test_no_block_of_commands_is_excused_in_vain() -> None:
    """Every excuse still belongs to a command of the README."""
    written = "".join(blocks("console"))
    for command in EXCUSES:
        assert f"$ {command}\n" in written


if __name__ == "__main__":
    current = README.read_text(encoding="utf-8")
    start, end = current.index(BEGIN) + len(BEGIN), current.index(END)
    README.write_text(current[:start] + commands() + current[end:], encoding="utf-8")
