"""How close each packer comes to the proven bound, on generated forests."""

from __future__ import annotations

from collections.abc import Sequence

from .forests import FAMILIES, grow_forest
from .measure import print_table
from .packings import Figures, measure_packers, warm_packers

__all__ = ["SEQ_LENS", "packers"]

SEQ_LENS = (2_048, 8_192, 32_768, 131_072)
_NODES = 100_000  # of a forest, at scale 1
_SHORTEST_AGENT = 8_192  # its system prompts alone are up to 4,000 rows


def packers(
    scale: float, families: Sequence[str] = (), seq_lens: Sequence[int] = SEQ_LENS, polish: int | None = None
) -> None:
    """Print the windows of each packer over the bound, and what packing costs.

    Args:
        scale: factor of the forests' nodes, 100,000.
        families: of the forests; none: all.
        seq_lens: rows of a window.
        polish: attempts a window; None: as the bound advises.
    """
    warm_packers()
    rows = []
    for family in families or FAMILIES:
        for seq_len in seq_lens:
            if family != "agent" or seq_len >= _SHORTEST_AGENT:
                forest = grow_forest(family, seq_len, num_nodes=int(_NODES * scale))
                name = f"{family} @ {seq_len // 1024}k" if seq_len % 1024 == 0 else f"{family} @ {seq_len:,}"
                rows.append(_row(name, measure_packers(forest, seq_len, polish=polish)))
    print_table(
        "packers: windows over the proven lower bound; input order is preorder (CPU, one thread; memory beside the "
        "forest's)",
        (
            "family",
            "nodes",
            "windows",
            "bound",
            "best fit",
            "+ elimination",
            "portfolio",
            "+ polish",
            "walk",
            "first fit",
            "first fit, shuffled",
            "best fit, no sharing",
            "rows/bound",
            "attention/bound",
            "bound, s",
            "pack, s",
            "polish, s",
            "MB",
        ),
        rows,
    )


def _row(name: str, found: Figures) -> tuple[str, ...]:
    cost, bound = found.packed.cost, found.packed.bound
    ours = (found.best_fit, found.eliminated, found.portfolio, cost.windows)
    others = (found.walk, found.first_fit, found.shuffled, found.apart)
    return (
        name,
        f"{found.nodes:,}",
        f"{cost.windows:,}",
        f"{bound.windows:,}",
        *(f"{windows / bound.windows:.4f}" for windows in ours),
        *(f"{windows / bound.windows:.3f}" for windows in others),
        f"{cost.rows / bound.rows:.4f}",
        f"{cost.attention / bound.attention:.4f}",
        *(f"{spent:.2f}" for spent in (found.bound_seconds, found.pack_seconds, found.polish_seconds)),
        f"{found.megabytes:,.0f}",
    )
