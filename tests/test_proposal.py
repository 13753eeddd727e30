"""Proposals: a tree of tokens, and a chain as one of its forms."""

import numpy as np
import pytest

from specrt.runtime.distribution import point
from specrt.runtime.proposal import NOTHING, ROOT, Proposal, chain


def test_a_chain_is_a_tree_of_only_children():
    proposal = chain([5, 6, 7])
    assert proposal.parents.tolist() == [ROOT, 0, 1]
    assert [proposal.children(node) for node in (ROOT, 0, 1, 2)] == [[0], [1], [2], []]
    assert (proposal.size, proposal.depth, proposal.is_chain) == (3, 3, True)


def test_siblings_come_in_the_order_drawn():
    tree = Proposal(np.array([9, 3, 4, 1]), np.array([-1, -1, 0, -1]))
    assert tree.children(ROOT) == [0, 1, 3]
    assert tree.children(0) == [2]
    assert (tree.depth, tree.is_chain) == (2, False)


def test_nothing_is_an_empty_chain():
    assert (NOTHING.size, NOTHING.depth, NOTHING.is_chain) == (0, 0, True)
    assert NOTHING.children(ROOT) == []
    assert NOTHING.tokens.dtype == np.int64


def test_a_token_without_a_law_was_certain():
    assert chain([5]).law(0).of(5) == 1
    assert chain([5], (point(6),)).law(0).of(5) == 0


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2]])
def test_a_node_that_stands_before_its_parent_is_our_mistake(parents):
    with pytest.raises(AssertionError):
        Proposal(np.zeros(len(parents), np.int64), np.array(parents))


def test_a_path_leads_from_the_first_level_to_its_node():
    tree = Proposal(np.array([9, 3, 4, 1, 8]), np.array([-1, -1, 0, -1, 2]))
    assert [tree.path(node) for node in (ROOT, 1, 4)] == [(), (1,), (0, 2, 4)]


def test_a_line_is_all_that_is_below_a_node_where_nothing_branches():
    tree = Proposal(np.array([9, 3, 4, 1, 8]), np.array([-1, -1, 0, 1, 2]))
    assert [tree.line(node) for node in range(ROOT, 5)] == [None, (2, 4), (3,), (4,), (), ()]
    assert chain([5, 6, 7]).line(ROOT) == (0, 1, 2)
    assert NOTHING.line(ROOT) == ()
