"""The trie: sequences in, a canonical preorder node table out.

    sequences -> order.sort_sequences -> (order, lcp) -> nodes.build_trie -> Trie -> store
                                          state.merge_states ------------------^
    Trie + supervised runs -> weights.sweep_weights -> weights per row

``kernels`` holds the compiled twins of the loops and is imported only for large corpora.
"""

from dagpack_cli.trie.nodes import Trie, build_trie
from dagpack_cli.trie.order import Engine
from dagpack_cli.trie.state import Transitions, count_transitions, markov_conflicts, merge_states
from dagpack_cli.trie.store import open_trie, save_trie
from dagpack_cli.trie.weights import check_weights, sweep_weights

__all__ = [
    "Engine",
    "Transitions",
    "Trie",
    "build_trie",
    "check_weights",
    "count_transitions",
    "markov_conflicts",
    "merge_states",
    "open_trie",
    "save_trie",
    "sweep_weights",
]
