"""Corpora and outputs in object stores: copies of them here, so that everything else works on local files.

``uris`` tells a URI from a path, ``names`` which objects can be files, ``stores`` speaks to a store and ``faults``
says what it did wrong. ``mirror`` keeps copies, several ``transfers`` at a time, in the ``folders`` of a place;
``corpus`` and ``output`` are what is copied, ``publishing`` is the way back. `Edge` is what commands use: given a
path it does nothing, and pyarrow is imported for a URI only.
"""

from __future__ import annotations

from dagpack_cli.remote.edge import Edge, local_output
from dagpack_cli.remote.uris import is_remote

__all__ = ["Edge", "is_remote", "local_output"]
