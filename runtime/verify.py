"""The target's decision on a proposal: how far it is followed, and the token after that.

One walk for chain and tree, greedy and sampled, whatever the rule: the rule decides at a node, and
the walk goes on from what it accepts. A greedy target is a point mass, so every exact rule accepts
exactly its own choices.
"""

from dataclasses import dataclass

from specrt.runtime.noise import Chance
from specrt.runtime.proposal import ROOT
from specrt.runtime.rules import Rule
from specrt.runtime.scored import Scored


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: the accepted nodes, root first. bonus: the target's own token after them. lossy: by a
    rule that does not keep the target's law."""

    path: tuple[int, ...]
    bonus: int
    lossy: bool = False


def verify(scored: Scored, rule: Rule, chance: Chance) -> Verdict:
    """Pure but for the numbers taken from chance. A row becomes probabilities only when its node
    is reached."""
    path: tuple[int, ...] = ()
    while True:
        node = path[-1] if path else ROOT
        move = rule.follow(scored, node, chance)
        path += move.nodes
        if move.end is not None:
            last = path[-1] if path else ROOT
            return Verdict(path, chance.draw(move.end, scored.place(last)), rule.lossy)
