"""Kill a build two hundred times at random, and at every failpoint: ``python -m tests.bench crashes``.

The figure is how many builds ended, where, and how many left an output that is not whole or whose next build
ends in other bytes: none, or this stops with what it found.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .measure import print_table

_TESTS = Path(__file__).resolve().parent.parent
_ACTIONS = ("kill", "enospc", "edquot", "eio")


def main(arguments: Sequence[str]) -> None:
    """Kill, check, and print where the builds died."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench crashes", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="at random moments")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, which are as random as the machine anyway")
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(_TESTS))
    import random_kills
    from test_crashes import write_scenes

    with TemporaryDirectory(prefix="dagpack-crashes-") as folder:
        where = random_kills.run(Path(folder), given.kills, random.Random(given.seed))
    rows = [(f"SIGKILL at random, {stage}", str(number), "0") for stage, number in sorted(where.items())]
    rows += [("SIGKILL at random, all", str(sum(where.values())), "0")]
    for action in _ACTIONS:
        with TemporaryDirectory(prefix="dagpack-crashes-") as folder:
            write_scenes(Path(folder))
            words = [sys.executable, str(_TESTS / "crashes.py"), folder, action]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        if done.stdout:
            sys.exit(f"{action}:\n{done.stdout}")
        number, *names = done.stderr.split()
        kinds = Counter(name.rpartition(".")[0] for name in names)
        rows.append((f"{action} at {len(names)} failpoints of {len(kinds)} steps", number, "0"))
    print_table("builds that were ended, and outputs that were not whole afterwards", ("how", "ended", "broken"), rows)
