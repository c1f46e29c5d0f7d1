"""The trie: sequences in, a canonical preorder node table out.

    sequences -> order.sort_sequences -> (order, lcp) -> nodes.build_nodes -> Nodes -> store
    transitions.join_transitions -> Transitions -> state.merge_states -> Trie ----------^
    nodes + supervised runs -> weights.sweep_blocks -> weights per row
    Trie -> apart.part_prefixes -> NodeTable, as a larger min_shared would give it

``kernels`` holds the compiled twins of the loops and is imported only for large corpora.
"""

from dagpack_cli.trie.apart import end_nodes_of, part_prefixes
from dagpack_cli.trie.nodes import Nodes, NodeTable, Trie, build_nodes, build_trie
from dagpack_cli.trie.order import SEQUENCE_BYTES, Engine
from dagpack_cli.trie.state import merge_states
from dagpack_cli.trie.store import open_trie, save_nodes, save_trie
from dagpack_cli.trie.transitions import Transitions, count_transitions, join_transitions
from dagpack_cli.trie.weights import check_weights, sweep_blocks, sweep_weights

__all__ = [
    "SEQUENCE_BYTES",
    "Engine",
    "NodeTable",
    "Nodes",
    "Transitions",
    "Trie",
    "build_nodes",
    "build_trie",
    "check_weights",
    "count_transitions",
    "end_nodes_of",
    "join_transitions",
    "merge_states",
    "open_trie",
    "part_prefixes",
    "save_nodes",
    "save_trie",
    "sweep_blocks",
    "sweep_weights",
]
