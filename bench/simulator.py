"""Tokens a second without a model: what a device's costs make of how often drafts are right.

    python bench/simulator.py [--plain MS] [--slope V] [--draft MS] [--read MS] [--tokens N]

Prints, for a device whose step of k rows takes plain * (1 + slope * (k - 1)), how many times as
fast as plain decoding each policy and the best fixed budget are, by how often drafts are right.

The text of the simulation is made of places: token i is i, a draft's right tokens are the places
that follow and its wrong ones are negative. So the controllers that run here are the real ones.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from specrt.runtime.adaptive import Adaptive, Memory
from specrt.runtime.confidence import DEEPEST
from specrt.runtime.controller import Controller, Fixed
from specrt.runtime.costs import MOST_ROWS, Costs, DraftCost
from specrt.runtime.drafters.first import First
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.policies import POLICIES, named
from specrt.runtime.proposal import NOTHING, Proposal, chain
from specrt.runtime.trace import Step

SURE = 1.5  # how little a draft's certainty varies; the less, the more it is near 0 or 1
BUDGETS = (0, 1, 2, 3, 4, 6, 8, 12)  # of the fixed controllers that are tried in hindsight
OVERHEAD = 50e-6  # seconds of finding an n-gram


Controllers = Callable[[Sequence[int]], Controller]  # a prompt's tokens -> what chooses for it


class Offer(NamedTuple):
    """What a drafter would propose at a place: so many tokens at most, so many of the first ones
    right. sure: how certain a draft model is of each."""

    right: int
    size: int
    kind: str
    sure: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """plain: seconds of a step of one row. curve: v(rows) for 1, 2, … rows. drafts: seconds of each
    draft model for drafting a token, and for reading one; others are free. noise: the spread of
    log seconds of a step."""

    plain: float
    curve: Sequence[float]
    drafts: Mapping[str, tuple[float, float]]
    noise: float = 0.0

    def step(self, rows: int) -> float:
        """Seconds of a step; beyond the curve's end it goes on as at its end."""
        last = len(self.curve)
        if rows <= last:
            return self.plain * self.curve[rows - 1]
        slope = (self.curve[-1] - self.curve[last // 2]) / (last - 1 - last // 2)
        return self.plain * (self.curve[-1] + slope * (rows - last))


def straight(slope: float, jump: float = 0.05) -> list[float]:
    """v(k) of a device on which each row more costs `slope`, and the second one `jump` besides."""
    return [1.0 + (jump + slope * (k - 1)) * (k > 1) for k in range(1, MOST_ROWS + 1)]


@dataclass(frozen=True, slots=True)
class Text:
    """What each drafter would offer at each place, None where it has nothing. ids, written: the
    tokens of the prompt and of the text, if known. most: tokens that were asked for; 0: as many as
    were written. sure: how certain the target was of each token, if known."""

    offers: Mapping[str, Sequence[Offer | None]]
    prompt: int = 64
    ids: Sequence[int] = ()
    most: int = 0
    written: Sequence[int] = ()
    sure: Sequence[float] = ()

    @property
    def size(self) -> int:
        return min(len(offers) for offers in self.offers.values())

    def first(self, tokens: int) -> "Text":
        """The beginning of it."""
        offers = {name: each[:tokens] for name, each in self.offers.items()}
        most, written, sure = min(tokens, self.most), self.written[:tokens], self.sure[:tokens]
        return replace(self, offers=offers, most=most, written=written, sure=sure)

    def certainty(self, place: int) -> float:
        """The target's, of a token; a draft model's own, where that is not known."""
        if self.sure:
            return self.sure[place]
        offers = (places[place] for places in self.offers.values())
        return next((offer.sure[0] for offer in offers if offer and offer.sure), 0.0)


class Simulated:
    """A drafter that offers what a text says it would."""

    def __init__(self, name: str, text: Text, *, free: bool) -> None:
        self.free, self._name, self._text = free, name, text
        self.stops = any(offer and offer.sure for offer in text.offers[name])
        self.read = 0  # tokens of the text that it knows

    def unread(self, tokens: Sequence[int]) -> int:
        return 1 if self.free else max(len(tokens) - self.read, 1)

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        place = len(context.tokens)
        offer = self._text.offers[self._name][place - self._text.prompt]
        size = min(budget, offer.size) if offer else 0
        if offer is None or size < 1:
            return NOTHING
        if context.go_on is not None:
            going = (context.go_on(sure) for sure in offer.sure[:size])
            size = next((n for n, on in enumerate(going, start=1) if not on), size)
        right = min(offer.right, size)
        self.read = place + max(right - (right == size), 0)
        tokens = [*range(place, place + right), *range(-1, right - size - 1, -1)]
        return chain(tokens, source=self._name, kind=offer.kind)


def run(
    text: Text, device: Device, controller: Controller, names: Sequence[str], seed: int = 0
) -> list[Step]:
    """The steps in which a controller and the named drafters write a text on a device."""
    rng = np.random.default_rng(seed)
    simulated = {name: Simulated(name, text, free=name not in device.drafts) for name in names}
    drafters: list[Drafter] = list(simulated.values())
    drafter = drafters[0] if len(drafters) == 1 else First(drafters)
    tokens, written, steps = [*(text.ids or range(text.prompt))], 0, list[Step]()
    while written < text.size:
        place = text.prompt + written
        context, room = Context(tokens), max(text.size, text.most) - written - 1
        unread = {name: one.unread(context.tokens) for name, one in simulated.items()}
        proposal = controller.draft(drafter, context, room, rng)
        n = proposal.size
        wrong = np.flatnonzero(proposal.tokens != np.arange(place, place + n))
        accepted = int(wrong[0]) if wrong.size else n
        draft_s = OVERHEAD
        if proposal.source in device.drafts:
            token_s, read_s = device.drafts[proposal.source]
            draft_s += n * token_s + (unread[proposal.source] - 1) * read_s
        slower = float(np.exp(rng.normal(0.0, device.noise)))
        step = Step(
            emitted=tuple(range(place, place + accepted + 1)),
            drafted=n,
            accepted=accepted,
            depth=n,
            seconds=(draft_s * slower, device.step(n + 1) * slower, 0.0),
            source=proposal.source,
            certainty=text.certainty(written),
            reason=controller.reason,
            finish="stop" if written + accepted + 1 >= text.size < text.most else None,
        )
        controller.observe(step)
        steps.append(step)
        written += len(step.emitted)
        tokens += step.emitted
    return steps


def speed(steps: Sequence[Step]) -> float:
    """Tokens a second."""
    return sum(len(step.emitted) for step in steps) / sum(sum(step.seconds) for step in steps)


def draft_text(rates: Sequence[float], rng: np.random.Generator, name: str = "draft") -> Text:
    """A text in which a draft is right about token i with probability rates[i], on average: it is
    certain of some tokens and not of others, and right as often as it is certain."""
    share = np.clip(rates, 1e-6, 1 - 1e-6)
    sure = rng.beta(SURE * share, SURE * (1 - share))
    right = _runs(rng.random(share.size) < sure)
    offers = [
        Offer(n, share.size - i, name, tuple(sure[i : i + DEEPEST].tolist()))
        for i, n in enumerate(right)
    ]
    return Text({name: offers})


def lookup_text(
    rates: Sequence[float], rng: np.random.Generator, share: float = 0.5, name: str = "ngram"
) -> Text:
    """The same for a drafter that has something to offer at a share of the places, and goes on once
    it was right."""
    right = _runs(rng.random(len(rates)) < rates)
    found = rng.random(len(rates)) < share
    offers: list[Offer | None] = []
    going = False
    for i, n in enumerate(right):
        going = going or bool(found[i])
        offers.append(Offer(n, 16, f"{name} 2") if going else None)
        going = going and n > 0
    return Text({name: offers})


def joined(*texts: Text) -> Text:
    """One text, with the drafters of all."""
    return Text({name: offers for text in texts for name, offers in text.offers.items()})


def _runs(right: np.ndarray) -> list[int]:
    """How many in a row are true from each place on. right: (n,) bool."""
    runs: list[int] = []
    for one in reversed(right.tolist()):
        runs.append(runs[-1] + 1 if one and runs else int(one))
    return runs[::-1]


def memory(device: Device, policy: str = "cost", *, profiled: bool = False) -> Memory:
    """What a controller starts from: guesses, or what a profile would say."""
    scale = 1.0 if profiled else 0.8  # a guess by size, somewhat wrong
    drafts = {
        name: DraftCost(scale * token_s / device.plain, read_s / device.plain)
        for name, (token_s, read_s) in device.drafts.items()
    }
    curve = {k: v for k, v in enumerate(device.curve, start=1) if profiled}
    return Memory(Costs(drafts, curve), policy=named(policy))


def settings(
    names: Sequence[str], device: Device, policies: Sequence[str], *, profiled: bool = False
) -> dict[str, tuple[Sequence[str], Controllers]]:
    """What is compared: under "plain", under each combination of drafters with a fixed budget
    ("draft 4", "ngram+draft 8"), and under each policy, the drafters and what makes a controller.
    A policy's memory lasts from text to text. Of a draft model a recorded text knows DEEPEST
    tokens, so that no budget is more where there is one."""
    every, found = tuple(names), dict[str, tuple[Sequence[str], Controllers]]()
    for combined in dict.fromkeys([*((name,) for name in every), every]):
        costly = any(name in device.drafts for name in combined)
        for budget in (size for size in BUDGETS if size <= DEEPEST or not costly):
            label = f"{'+'.join(combined)} {budget}" if budget else "plain"
            found[label] = combined, partial(_fixed, budget)
    for policy in policies:
        held = memory(device, policy, profiled=profiled)
        found[policy] = every, partial(Adaptive, every, held)
    return found


def _fixed(budget: int, prompt: Sequence[int]) -> Controller:
    return Fixed(budget)


def compare(
    texts: Sequence[Text], device: Device, policies: Sequence[str], seed: int = 0
) -> dict[str, float]:
    """Tokens a second over texts written one after another: of each policy, of plain decoding, and
    of the best drafter at the best fixed budget, chosen in hindsight."""
    found = {}
    for label, (names, controller) in settings(tuple(texts[0].offers), device, policies).items():
        found[label] = speed(
            [
                step
                for i, text in enumerate(texts)
                for step in run(text, device, controller(text.ids), names, seed + i)
            ]
        )
    best = max(pace for label, pace in found.items() if label not in policies)
    return {
        "plain": found["plain"],
        "best fixed": best,
        **{policy: found[policy] for policy in policies},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--plain", type=float, default=20.0, help="ms of a step of one row (20)")
    add("--slope", type=float, default=0.08, help="v(k) gains this with each row (0.08)")
    add("--draft", type=float, default=7.0, help="ms of drafting a token (7)")
    add("--read", type=float, default=1.0, help="ms of the draft's reading one (1)")
    add("--noise", type=float, default=0.1, help="spread of log seconds (0.1)")
    add("--tokens", type=int, default=1000, help="of each text (1000)")
    add("--seed", type=int, default=0)
    options = parser.parse_args()
    ms = 1e-3
    device = Device(
        options.plain * ms,
        straight(options.slope),
        {"draft": (options.draft * ms, options.read * ms)},
        options.noise,
    )
    columns = ("best fixed", *POLICIES)
    print(f"{'drafter':10}{'right':>7}" + "".join(f"{name:>11}" for name in columns))
    for rate in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9):
        rng = np.random.default_rng(options.seed)
        rates = [rate] * options.tokens
        alone = {"draft": draft_text(rates, rng), "lookup": lookup_text(rates, rng)}
        for name, text in {**alone, "both": joined(alone["lookup"], alone["draft"])}.items():
            found = compare([text], device, tuple(POLICIES), options.seed)
            cells = "".join(f"{found[column] / found['plain']:11.2f}" for column in columns)
            print(f"{name:10}{rate:7.1f}{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
