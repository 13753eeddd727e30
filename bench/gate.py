"""Thresholds set before a benchmark is run: "speedup>=1.3", "auto/edit speedup>=0.97".

Before the figure stands whose: DRAFTER or DRAFTER/KIND, `*` being any drafter but plain decoding,
or any kind of work. Without a kind it is all work together, without a drafter every drafter.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIGURES = (
    *("speedup", "answer_speedup", "tokens_per_s", "answer_tokens_per_s", "ttft_s"),
    *("token_ms_p50", "token_ms_p95", "token_ms_p99", "acceptance_rate", "tokens_per_step"),
    *("joules_per_token", "other_text", "failed"),
)
BASELINE = "none"
EVERY, ALL = "*", "all"
_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(
    rf"(?:(?P<drafter>[^\s/<>=]+)(?:/(?P<kind>[^<>=]*[^\s<>=]))?\s+)?"
    rf"(?P<figure>{'|'.join(FIGURES)})\s*(?P<sign>>=|<=|>|<)\s*(?P<bound>\d+\.?\d*)"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound that a figure must keep."""

    figure: str
    sign: str
    bound: float
    drafter: str = EVERY
    kind: str = ALL

    def covers(self, drafter: str, kind: str) -> bool:
        """Whether it is about the figures of a drafter at a kind of work."""
        everyone = self.drafter == EVERY and drafter != BASELINE
        everything = self.kind == EVERY and kind != ALL
        return (everyone or self.drafter == drafter) and (everything or self.kind == kind)


def parse(text: str) -> Gate | None:
    """The gate that a text is, None if it is none.

    >>> parse("auto/edit speedup>=0.97")
    Gate(figure='speedup', sign='>=', bound=0.97, drafter='auto', kind='edit')
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    bound, who = float(found["bound"]), (found["drafter"] or EVERY, found["kind"] or ALL)
    return Gate(found["figure"], found["sign"], bound, *who)


def unmet(gates: Sequence[Gate], drafters: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    """What gates name and the benchmark does not have, before it is run."""
    for gate in gates:
        if gate.drafter not in (EVERY, *drafters):
            yield f"drafter {gate.drafter!r}, and the drafters are {', '.join(drafters)}"
        if gate.kind not in (EVERY, ALL, *kinds):
            yield f"work {gate.kind!r}, and the kinds of work are {', '.join(kinds)}"


def failures(gates: Sequence[Gate], summary: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """For each gate that does not hold, whose figure is how far off."""
    for gate in gates:
        for drafter, works in summary.items():
            for kind, figures in works.items():
                if gate.covers(drafter, kind) and (found := _lack(gate, figures[gate.figure])):
                    bound = f"{gate.figure}{gate.sign}{gate.bound:g}"
                    yield f"{bound} does not hold: {drafter} has {found} ({kind})"


def _lack(gate: Gate, figure: Any) -> str:
    """ "" if the figure, or its median, keeps the bound."""
    found = figure["median"] if isinstance(figure, Mapping) else figure
    if found is None:
        return "no such figure"
    if _COMPARE[gate.sign](found, gate.bound):
        return ""
    return f"{found:.3f}, off by {abs(found - gate.bound):.3f}"
