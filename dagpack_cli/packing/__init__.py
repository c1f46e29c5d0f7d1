"""Packing: which rows of a forest stand in which training window. Pure: arrays in, arrays out.

    parents, lengths -> Forest -> pack_forest --------------------> Placement     layout dag
                                  pack_leaves   -> place_leaves -> Placement      of one range
                        Forest -> walk_forest  ------------------> Placement      layout walk
                        Forest -> lower_bound  -> Bound                           what no packing beats
    lengths -> next_fit | best_fit_decreasing | one_each -> window of each item   layouts without merging
    Forest, Placement -> check_placement                                          for verify

Every function with an ``engine`` has a plain and a compiled way with the same result; importing
this package compiles nothing.
"""

from __future__ import annotations

from dagpack_cli.packing.apart import best_fit_apart
from dagpack_cli.packing.bound import Bound, lower_bound, node_windows
from dagpack_cli.packing.bundle import bundle_leaves
from dagpack_cli.packing.chains import best_fit_decreasing, iter_best_fit, next_fit, one_each
from dagpack_cli.packing.closed_walk import closed_walk
from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.first_fit import first_fit
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import Cost
from dagpack_cli.packing.placement import Placement, check_placement, place_leaves
from dagpack_cli.packing.portfolio import Packed, pack_leaves
from dagpack_cli.packing.ranged import PackedForest, pack_forest, place_by_range
from dagpack_cli.packing.ranges import range_starts, take_range
from dagpack_cli.packing.walk import iter_walk, walk_forest

__all__ = [
    "Bound",
    "Cost",
    "Engine",
    "Forest",
    "Packed",
    "PackedForest",
    "Placement",
    "best_fit_apart",
    "best_fit_decreasing",
    "bundle_leaves",
    "check_placement",
    "closed_walk",
    "first_fit",
    "iter_best_fit",
    "iter_walk",
    "lower_bound",
    "next_fit",
    "node_windows",
    "one_each",
    "pack_forest",
    "pack_leaves",
    "place_by_range",
    "place_leaves",
    "range_starts",
    "take_range",
    "walk_forest",
]
