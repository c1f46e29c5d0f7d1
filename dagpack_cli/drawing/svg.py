"""A small writer of SVG: a few shapes in one quiet style, always the same bytes for the same calls.

The paper is painted, so that a picture reads the same on a dark page. Nothing refers to anything
outside the file, and there are no scripts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagpack_cli.drawing.lettering import MONO, SANS, clean

__all__ = ["FAINT", "INK", "MUTED", "PAPER", "RULE", "SERIES", "TINTS", "WHITE", "Canvas", "number"]

INK, MUTED, FAINT, RULE, PAPER, WHITE = "#1f2933", "#5b6774", "#8a949e", "#d5dbe1", "#fbfbf9", "#ffffff"
# Colours that stay apart for colour-blind eyes, and the light tint of each.
SERIES = ("#2f6fb3", "#c2571a", "#2f855a", "#7a5aa6", "#a3710f", "#a83e5b", "#2a7f8e", "#5f6b7a")
TINTS = ("#dce8f4", "#fae3d4", "#d9eee1", "#e7dff2", "#f6e8c8", "#f6dbe3", "#d5ebee", "#e4e8ec")

_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;"
    "font-size:12px;fill:" + INK + "}"
    ".m{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".b{font-weight:600}"
)
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def number(value: float) -> str:
    """Return a coordinate with at most two decimals, in its shortest form.

    >>> number(3.0), number(0.125), number(-0.001)
    ('3', '0.12', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


class Canvas:
    """Shapes in the order in which they are painted.

    Args:
        width, height: of the picture, in pixels.
        title: what it shows, in a few words; read aloud and shown as a tooltip.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self._title = title
        self._parts: list[str] = []
        self._groups = 0

    def _add(self, name: str, attributes: dict[str, str | float | None], inner: str = "") -> None:
        """Append an element; attributes are our own text, ``inner`` is already markup."""
        given = ""
        for key, value in attributes.items():
            if value is not None:
                text = value.translate(_ESCAPES) if isinstance(value, str) else number(value)
                given += f' {key.replace("_", "-")}="{text}"'
        self._parts.append(f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = WHITE,
        stroke: str | None = None,
        stroke_width: float | None = None,
        radius: float | None = None,
        opacity: float | None = None,
        tip: str = "",
    ) -> None:
        """Paint a rectangle; ``tip`` is its tooltip."""
        attributes: dict[str, str | float | None] = {"x": x, "y": y, "width": width, "height": height}
        attributes |= {"rx": radius, "fill": fill, "stroke": stroke, "stroke_width": stroke_width}
        self._add("rect", attributes | {"fill_opacity": opacity}, _tooltip(tip))

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        *,
        fill: str,
        stroke: str | None = None,
        stroke_width: float | None = None,
    ) -> None:
        """Paint a circle around ``(x, y)``."""
        self._add(
            "circle", {"cx": x, "cy": y, "r": radius, "fill": fill, "stroke": stroke, "stroke_width": stroke_width}
        )

    def path(
        self,
        data: str,
        *,
        fill: str = "none",
        stroke: str | None = None,
        stroke_width: float | None = None,
        dashes: str | None = None,
        opacity: float | None = None,
        crisp: bool = False,
    ) -> None:
        """Paint a path; ``crisp`` edges are not smoothed (cells of grids)."""
        attributes: dict[str, str | float | None] = {"d": data, "fill": fill, "stroke": stroke}
        attributes |= {"stroke_width": stroke_width, "stroke_dasharray": dashes, "fill_opacity": opacity}
        self._add("path", attributes | {"shape_rendering": "crispEdges" if crisp else None})

    def line(self, points: Sequence[tuple[float, float]], *, stroke: str = RULE, stroke_width: float = 1) -> None:
        """Paint straight lines from point to point."""
        data = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.path(data, stroke=stroke, stroke_width=stroke_width)

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 12,
        fill: str | None = None,
        font: str = SANS,
        bold: bool = False,
        anchor: str | None = None,
        tip: str = "",
    ) -> None:
        """Write one line with its baseline at ``y``; it is made harmless, not cut (see `lettering.fit`)."""
        shown = clean(content).translate(_ESCAPES)
        if not shown:
            return
        classes = " ".join(name for name, wanted in (("m", font == MONO), ("b", bold)) if wanted)
        attributes: dict[str, str | float | None] = {"x": x, "y": y, "class": classes or None}
        attributes |= {"style": None if size == 12 and fill is None else _text_style(size, fill), "text_anchor": anchor}
        self._add("text", attributes, shown + _tooltip(tip))

    def open_group(self, name: str) -> None:
        """Begin a group; ``name`` is its ``data-node``, by which a reader finds what the picture shows."""
        self._parts.append(f'<g data-node="{clean(name).translate(_ESCAPES)}">')
        self._groups += 1

    def close_group(self) -> None:
        """End the innermost group."""
        self._parts.append("</g>")
        self._groups -= 1

    def render(self) -> str:
        """Return the picture as the text of an SVG file."""
        assert self._groups == 0, "a group is left open"
        width, height = number(self.width), number(self.height)
        title = clean(self._title).translate(_ESCAPES)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>\n'
        )
        return head + "\n".join(self._parts) + "\n</svg>\n"


def _text_style(size: float, fill: str | None) -> str:
    return ";".join(
        part for part in (f"font-size:{number(size)}px" if size != 12 else "", f"fill:{fill}" if fill else "") if part
    )


def _tooltip(text: str) -> str:
    return f"<title>{clean(text).translate(_ESCAPES)}</title>" if text else ""
