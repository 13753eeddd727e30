"""Block verification: a drawn chain is accepted as a whole (Sun et al. 2403.10444).

Token by token a chain ends at its first refusal. Judged together, a token that the target likes
more than the draft did makes up for an earlier one, so as many tokens are accepted or more, and
the text still has the target's law.
"""

from specrt.runtime.distribution import residual, scaled, surplus
from specrt.runtime.noise import Chance
from specrt.runtime.rules.membership import membership
from specrt.runtime.rules.rejection import rejection
from specrt.runtime.scored import Move, Scored


def block(scored: Scored, node: int, chance: Chance) -> Move:
    """Everything below a node, where that is a chain; siblings are tried one after the other. A
    proposal of certain tokens gains nothing, so it is left to membership."""
    if scored.proposal.probs is None:
        return membership(scored, node, chance)
    line = scored.proposal.line(node)
    return rejection(scored, node, chance) if line is None else _line(scored, node, line, chance)


def _line(scored: Scored, node: int, line: tuple[int, ...], chance: Chance) -> Move:
    """joint[i]: how far the target backs the first i tokens, min(joint[i - 1] p / q, 1). The
    longest prefix is taken whose own toss succeeds, so they are tossed for from the end."""
    tokens, law = scored.proposal.tokens, scored.proposal.law
    laws, joint = [], [1.0]  # laws[i]: p after the first i tokens
    for i, child in enumerate(line):
        laws.append(scored.p(line[i - 1] if i else node))
        token = int(tokens[child])
        offered = law(child).of(token)
        assert offered > 0, f"draft token {token} is none of its own law's"
        joint.append(min(joint[i] * laws[i].of(token) / offered, 1.0))
        if not joint[-1]:  # nothing longer can be accepted, nor is its row looked at
            break
    for i in range(len(joint) - 1, 0, -1):
        if i == len(line):
            if chance.accepts(joint[i], 1.0):
                return Move(line, scored.p(line[-1]))
        elif joint[i]:
            rest = surplus(laws[i], law(line[i]), joint[i])
            total, spare = float(rest.sum()), 1.0 - joint[i]
            if not spare or chance.accepts(total, total + spare):
                return Move(line[:i], scaled(laws[i], rest))
    return Move((), residual(laws[0], law(line[0])) if line else scored.p(node))
