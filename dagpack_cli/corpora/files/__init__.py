"""Files as streams of bytes, lines, JSON values and table rows."""
