"""Pictures: self-contained SVG of what training data is and what became of it.

Read in this order: ``svg`` and ``lettering`` write shapes and text, ``selection`` chooses what fits.
``events`` and ``tree`` draw a session, ``recordings``, ``layers``, ``grids`` and ``graph`` a game;
``trie`` and ``window`` (with ``mask``, ``bands`` and ``labels``) draw a build. ``choose`` tells which
one is wanted. The same input gives the same bytes.
"""

from __future__ import annotations

from dagpack_cli.drawing.choose import draw, write_picture
from dagpack_cli.drawing.graph import draw_game
from dagpack_cli.drawing.tree import draw_session
from dagpack_cli.drawing.trie import draw_trie
from dagpack_cli.drawing.window import draw_window

__all__ = ["draw", "draw_game", "draw_session", "draw_trie", "draw_window", "write_picture"]
