"""Settings of every test: Hypothesis without deadlines (machines are noisy), repeatable in CI."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Tests run side by side, and on tiny tensors: threads of their own would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every build syncs its files; thousands of tiny ones do so in memory where the machine has a place for it.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
    tempfile.tempdir = str(_MEMORY)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Whoever starts a command in the background may have it ignore SIGINT, and so would what the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
