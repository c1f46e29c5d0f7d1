"""What only a GPU can show: exactness and speed of training there. A script, not tests: ``python -m tests.gpu``."""

import sys
from pathlib import Path

# Where pytest looks for what tests share, the bench among them; run as a script, nobody else says so.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
