"""Verification rules by name, one file an idea. docs/verification.md says which to use when.

A rule is a function of one node: what of the tokens below it is accepted, and what follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from specrt.runtime.errors import RequestError
from specrt.runtime.rules.block import block
from specrt.runtime.rules.kseq import kseq
from specrt.runtime.rules.lossy import topk, typical
from specrt.runtime.rules.membership import membership
from specrt.runtime.rules.rejection import rejection
from specrt.runtime.scored import Follow, Move


@dataclass(frozen=True, slots=True)
class Rule:
    """follow: decides at a node. coupled: tokens are drawn with the text's noise, so that the same
    seed gives the same text. lossy: the text does not follow the target's law."""

    name: str
    follow: Follow
    coupled: bool = False
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number of a lossy rule: above `low`, at most `high`."""

    name: str
    default: float
    high: float
    low: float = 0.0
    whole: bool = False

    def read(self, text: str, rule: str) -> float:
        try:
            value = float(int(text) if self.whole else float(text))
        except ValueError:
            value = float("nan")
        if not self.low < value <= self.high:
            kind = "a whole number" if self.whole else "a number"
            raise RequestError(
                f"rule {rule}: {self.name} must be {kind} above {self.low:g} and at most "
                f"{self.high:g}, not {text!r}"
            )
        return value


COUPLED = Rule("coupled", membership, coupled=True)
EXACT: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        COUPLED,
        Rule("block", block),
        Rule("rejection", rejection),
        Rule("membership", membership),
        Rule("kseq", kseq),
    )
}
LOSSY: Mapping[str, tuple[Parameter, ...]] = {
    "lenience": (Parameter("lenience", 0.5, high=1.0),),
    "topk": (Parameter("k", 2, high=2**31, whole=True),),
    "typical": (Parameter("epsilon", 0.09, high=1.0), Parameter("delta", 0.3, high=1.0)),
}
_FOLLOW: Mapping[str, Callable[..., Move]] = {
    "lenience": rejection,
    "topk": topk,
    "typical": typical,
}


def named(text: str) -> Rule:
    """The rule called `text`: a name, and for a lossy one perhaps its numbers, as in
    `lenience:0.5` or `typical:0.09,0.3`. RequestError for what there is not."""
    name, _, numbers = text.partition(":")
    if text in EXACT:
        return EXACT[text]
    if name not in LOSSY:
        raise RequestError(
            f"no verification rule {text!r}: there are {', '.join(EXACT)}, and the lossy "
            f"{', '.join(LOSSY)}"
        )
    given = numbers.split(",") if numbers else []
    wanted = LOSSY[name]
    if len(given) > len(wanted):
        raise RequestError(f"rule {name} takes at most {len(wanted)} numbers, not {len(given)}")
    values = {p.name: p.default for p in wanted}
    values |= {p.name: p.read(t, name) for p, t in zip(wanted, given, strict=False)}
    return Rule(text, partial(_FOLLOW[name], **values), lossy=True)
