"""What happened: one Step each time the target ran, and every number derived from them.

accepted never counts the bonus: a step emits its accepted draft tokens and one token of the
target's own, unless the end of the text cuts it short.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specrt.runtime.detail import Detail, Logprob

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Step:
    """emitted: one token or more, a stop token included; the first `accepted` came from the draft.
    drafted: nodes proposed, depth: levels of them (equal for a chain).
    seconds: draft, target, verify. prefill_s: reading the prompt, on the first step.
    source: the drafter that proposed, "" if none did. reason: the controller's, for its budget.
    rule: the verification rule; lossy: it does not keep the target's law.
    certainty: the target's of the first emitted token, see `Scored.certainty`."""

    emitted: tuple[int, ...]
    drafted: int
    accepted: int
    depth: int
    seconds: tuple[float, float, float]
    source: str = ""
    reason: str = ""
    finish: Finish | None = None
    prefill_s: float = 0.0
    logprobs: tuple[Logprob, ...] = ()
    detail: Detail | None = None
    rule: str = ""
    lossy: bool = False
    certainty: float = 0.0

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """The emitted tokens that are text: all but a stop token."""
        return self.emitted[:-1] if self.finish == "stop" else self.emitted

    @property
    def from_draft(self) -> tuple[bool, ...]:
        """For each emitted token, whether the drafter proposed it."""
        return tuple(i < self.accepted for i in range(len(self.emitted)))

    def record(self) -> dict[str, Any]:
        """The step as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class Trace:
    """The steps of one request."""

    prompt_tokens: int
    drafter: str = "none"
    seed: int | None = None
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def summary(self) -> dict[str, Any]:
        """All figures of the run. Speed leaves the whole first step out, so a first block of
        several tokens does not flatter it; accepted_at[d] is the share, of the steps
        whose draft was deeper than d, in which more than d tokens were accepted; choices says
        how many steps drafted what, the most frequent first; reason is the last step's."""
        steps = self.steps
        tokens = sum(len(step.emitted) for step in steps)
        drafted = sum(step.drafted for step in steps)
        accepted = sum(step.accepted for step in steps)
        seconds = [sum(step.seconds) for step in steps]
        decode_s = sum(seconds[1:])
        draft_s, target_s, verify_s = (sum(step.seconds[i] for step in steps) for i in range(3))
        return {
            "prompt_tokens": self.prompt_tokens,
            "tokens": tokens,
            "finish_reason": (steps[-1].finish if steps else None) or "length",
            "ttft_s": steps[0].prefill_s + seconds[0] if steps else 0.0,
            "decode_s": decode_s,
            "tokens_per_s": (tokens - len(steps[0].emitted)) / decode_s if decode_s else 0.0,
            "steps": len(steps),
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            "tokens_per_step": tokens / len(steps) if steps else 0.0,
            "accepted_at": self._accepted_at(),
            "choices": self._choices(),
            "reason": steps[-1].reason if steps else "",
            "draft_s": draft_s,
            "target_s": target_s,
            "verify_s": verify_s,
            "drafter": self.drafter,
            "seed": self.seed,
            "rule": steps[0].rule if steps else "",
            "lossy": any(step.lossy for step in steps),
        }

    def _choices(self) -> dict[str, int]:
        """How many steps drafted so many tokens with which drafter, the most frequent first."""
        named = (f"{s.source} {s.drafted}" if s.drafted else "plain" for s in self.steps)
        return dict(Counter(named).most_common())

    def _accepted_at(self) -> list[float]:
        deepest = max((step.depth for step in self.steps), default=0)
        shares = []
        for depth in range(1, deepest + 1):
            tried = [step for step in self.steps if step.depth >= depth]
            shares.append(sum(step.accepted >= depth for step in tried) / len(tried))
        return shares
