"""The controller that chooses by cost: what to draft, with which drafter, or nothing.

Drafters that are free are asked first, and what they found is cut to what is worth verifying. Those
that cost time are asked only if they are expected to gain more. What a free drafter found is
compared with the text that came, whether it was verified or not: it needs no probes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from specrt.runtime.acceptance import MOST, Acceptance, Habits
from specrt.runtime.alike import Alike
from specrt.runtime.confidence import DEEPEST, Certainty, Stopped, Watch
from specrt.runtime.costs import MOST_ROWS, Costs
from specrt.runtime.drafters.first import is_free, parts, stops, unread
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.policies import CostOptimal, Option, Outcome, Policy
from specrt.runtime.proposal import NOTHING, Proposal
from specrt.runtime.staying import Stays
from specrt.runtime.trace import Step

RECENT = 0.99  # what is left of a step's weight in the pace after the next one
FASTER, BEGIN = 1.3, 4.0  # a text's pace over plain decoding, beforehand; the steps it counts
RISKY, CAUTION = 8.0, 1.5  # steps of plain decoding from which on reading is a risk; the deviations
# by which a draft model is then thought worse than is expected
REACH, FURTHER = 6, 1.5  # tokens of free drafts at first; then, of what was right in a row
LIKELY = 0.65  # that a draft model's next token is right, at least, if the text becomes easier
HOLD = 2.0  # readings of a token by which leaving a draft model must gain, for it seldom comes back
SUNK = 16  # tokens read at once beyond which reading says nothing of the pace from then on
IN_VAIN = "texts like this gained nothing from a draft model's reading"


@dataclass(slots=True)
class Memory:
    """What is known from text to text: the device's costs, the drafters' habits, the policy."""

    costs: Costs = field(default_factory=Costs)
    habits: Habits = field(default_factory=Habits)
    policy: Policy = field(default_factory=CostOptimal)


class _Part(NamedTuple):
    """One of the drafters, see drafters/first.py. stops: it takes time and stops by itself, where
    the policy says when."""

    name: str
    drafter: Drafter
    free: bool
    stops: bool


@dataclass(slots=True)
class _Offer:
    """A free proposal, followed until the text is found to go another way."""

    kind: str
    tokens: list[int]
    right: int = 0
    over: bool = False

    def follow(self, emitted: Sequence[int]) -> None:
        for token in emitted:
            if self.over or self.right == len(self.tokens):
                return
            self.over = token != self.tokens[self.right]
            self.right += not self.over


class Adaptive:
    """For one text. names: of the drafters, in order, as memory knows them. prompt: its tokens,
    which earlier texts may resemble."""

    def __init__(self, names: Sequence[str], memory: Memory, prompt: Sequence[int] = ()) -> None:
        self._names, self._memory = tuple(names), memory
        self._kinds: dict[str, Acceptance] = {}
        self._offers: dict[str, _Offer] = {}
        self._stays = Stays()
        self._alike = Alike(memory.habits.past, prompt)
        self._stopped: dict[str, Stopped] = {}
        self._watch = Watch(Certainty(), float)
        self._silent: set[str] = set()  # asked, and had nothing
        self._emitted, self._cost = FASTER * BEGIN, BEGIN  # lately; the cost in steps of one row
        self._reach: float = REACH  # tokens at which free drafts are cut
        self._pace = 0.0  # at the latest choice
        self._missed: dict[str, int] = {}  # tokens that a drafter had not read then
        self._chosen = Option("", 0, 1.0, 0.0)
        self._parts: list[_Part] = []
        self.reason = ""

    @property
    def pace(self) -> float:
        """Tokens a second lately; or of plain decoding, or of a draft model that has read, where
        that is more: time is worth what it gives there."""
        plain, most = self._memory.costs.plain, max(1.0, self._emitted / self._cost)
        for name, stopped in self._stopped.items():
            if self._missed.get(name, SUNK) < SUNK:
                drafting = self._memory.costs.drafting(name, stopped.drafted)
                most = max(most, stopped.emitted * plain / drafting)
        return most / plain

    def draft(
        self, drafter: Drafter, context: Context, room: int, rng: "np.random.Generator"
    ) -> Proposal:
        costs, policy = self._memory.costs, self._memory.policy
        if not self._parts:
            self._begin(drafter, context)
        self._pace = self.pace
        options = [Option("", 0, 1.0, costs.plain)]
        found: dict[str, Proposal] = {}
        costly: dict[str, Drafter] = {}
        for name, part, free, by_itself in self._parts:
            if free:
                proposal = part.propose(context, min(room, MOST), rng)
                if proposal.size:
                    found[name] = proposal
                    self._add_free(options, name, _kind(proposal), proposal.size)
            elif name not in self._silent:
                missed = self._missed[name] = unread(part, context.tokens)
                costly[name] = part
                if by_itself and not self._alike.in_vain(name):
                    self._add_stopping(options, name, missed, room)
                elif not by_itself:
                    self._add_costly(options, name, missed, room)
        chosen, why = policy.choose(options, self._pace)
        self._chosen = chosen
        self.reason = self._say(options, why)
        if not why:
            self._stays.chose("" if chosen.free else chosen.arm)
        for name, proposal in found.items():
            if name == chosen.arm or name not in self._offers:
                self._offers[name] = _Offer(_kind(proposal), proposal.tokens.tolist())
        if not chosen.tokens:
            return NOTHING
        if chosen.arm in found:
            return found[chosen.arm].first(chosen.tokens)
        if chosen.stops:
            self._watch = Watch(self._certainty(chosen.arm), self._floor(chosen.arm))
            context = replace(context, go_on=self._watch)
        return costly[chosen.arm].propose(context, chosen.tokens, rng)

    def observe(self, step: Step) -> None:
        memory, costs, chosen = self._memory, self._memory.costs, self._chosen
        draft_s, rest_s = step.seconds[0], step.seconds[1] + step.seconds[2]
        costs.observe(step.drafted + 1, rest_s)
        self._foresee(step)
        if chosen.arm and not chosen.free:
            if step.drafted:
                missed = self._missed[chosen.arm]
                costs.observe_draft(chosen.arm, step.drafted, missed, draft_s)
                self._learn(chosen.arm, step.accepted, step.depth)
                if chosen.stops:
                    self._learn_stopped(chosen.arm, step)
            else:
                self._silent.add(chosen.arm)
        for name in list(self._offers):
            offer = self._offers[name]
            offer.follow(step.emitted)
            if offer.over or offer.right == len(offer.tokens) or name == chosen.arm:
                self._learn(offer.kind, offer.right, offer.right + offer.over)
                self._reach = max(self._reach, FURTHER * offer.right)
                del self._offers[name]
        expected = costs.by_rows[min(step.drafted + 1, MOST_ROWS)]  # a slow moment is no slow draft
        if step.drafted and not chosen.free:
            expected += costs.draft(chosen.arm, step.drafted, min(self._missed[chosen.arm], SUNK))
        free, asked = bool(chosen.arm) and chosen.free, not chosen.free
        self._stays.wrote(len(step.emitted), free=free)
        memory.habits.ends.wrote(len(step.emitted), ended=step.finish == "stop")
        self._alike.wrote(len(step.emitted), expected / costs.plain, free=free, asked=asked)
        self._emitted = RECENT * self._emitted + len(step.emitted)
        self._cost = RECENT * self._cost + expected / costs.plain
        memory.policy.observe(
            chosen, Outcome(step.drafted, step.accepted, len(step.emitted), draft_s + rest_s)
        )

    def _foresee(self, step: Step) -> None:
        """What the target's certainty says of draft models that stop by themselves; or, of one that
        was asked, what it is worth. Where a free draft was verified none of them is missed."""
        if self._chosen.arm and self._chosen.free:
            return
        for name, _, _, by_itself in self._parts:
            if by_itself and name not in self._silent:
                agreement, stopped = self._memory.habits.agreement(name), self._stopped_of(name)
                chance = agreement.chance(step.certainty)
                if name != self._chosen.arm:
                    stopped.foresee(chance, self._floor(name)(stopped.going + 1))
                elif step.drafted:
                    stopped.show(chance, step.accepted > 0)
                    agreement.observe((step.certainty,), min(step.accepted, 1))

    def _begin(self, drafter: Drafter, context: Context) -> None:
        """What stays as it is in the whole text."""
        costs, habits, tokens = self._memory.costs, self._memory.habits, context.tokens
        foresees = self._memory.policy.floor(1.0) is not None
        self._parts = [
            _Part(name, part, is_free(part), foresees and stops(part) and not is_free(part))
            for name, part in zip(self._names, parts(drafter), strict=True)
        ]
        stopping = [(part.name, part.drafter) for part in self._parts if part.stops]
        if stopping:
            self._alike.begin()
        for name, part in stopping:
            habits.agreement(name).forget()
            self._alike.judge(name, unread(part, tokens), costs, habits.stopped(name))

    def _add_free(self, options: list[Option], name: str, kind: str, most: int) -> None:
        """What a free drafter found, cut to each number of tokens; or to that of greatest worth,
        where the policy goes by it."""
        rows, emits, chance = self._memory.costs.by_rows, 1.0, 1.0
        pace, most_worth, best = self._pace, -inf, (0, 0.0)
        by_worth = self._memory.policy.by_worth
        most = min(most, int(self._reach)) if by_worth else most
        for n, rate in enumerate(self._rates(kind, most), start=1):
            chance *= rate
            emits += chance
            worth = emits - pace * rows[n + 1]
            if not by_worth:
                options.append(Option(name, n, emits, rows[n + 1]))
            elif worth > most_worth:
                most_worth, best = worth, (n, emits)
        if by_worth:
            n, emits = best
            options.append(Option(name, n, emits, rows[n + 1]))

    def _add_costly(self, options: list[Option], name: str, missed: int, room: int) -> None:
        """Drafts of a drafter that takes time, one for each number of tokens."""
        costs = self._memory.costs
        rows, each, reading = costs.by_rows, costs.draft(name, 1), costs.draft(name, 0, missed)
        emits = chance = 1.0
        for n, rate in enumerate(self._rates(name, min(room, DEEPEST)), start=1):
            chance *= rate
            emits += chance
            seconds = rows[n + 1] + n * each
            lasting = self._lasting(name, missed, room, emits, reading)
            hope = n + 1 - self._pace * seconds
            options.append(Option(name, n, emits, seconds + reading, False, False, lasting, hope))

    def _add_stopping(self, options: list[Option], name: str, missed: int, room: int) -> None:
        """A draft of one that stops by itself."""
        costs, most = self._memory.costs, min(room, DEEPEST)
        if most:
            reading = costs.draft(name, 0, missed)
            usual, emits = self._expected(name, reading)
            drafted = min(usual, most)
            emits = min(1 + (emits - 1) * drafted / usual, most + 1)
            seconds = costs.drafting(name, drafted) + reading
            lasting = self._lasting(name, missed, room, emits, reading)
            options.append(Option(name, most, emits, seconds, False, True, lasting))

    def _lasting(self, name: str, missed: int, room: int, emits: float, reading: float) -> float:
        """Of the seconds of a draft model's step those from which later ones profit."""
        stays = self._stays
        hold = HOLD * self._memory.costs.draft(name, 0, 2) if stays.goes_on(name) else 0.0
        if self._alike.pays(name) and not stays.asked(name):  # the reading, in the whole text
            return reading + hold
        left = self._memory.habits.ends.left(room)
        return reading * (1 - 1 / stays.steps(name, missed, left, emits)) + hold

    def _expected(self, name: str, reading: float) -> tuple[float, float]:
        """Tokens of a draft that stops by itself, and of its step; where a long prompt has to be
        read first, the doubt is held against it."""
        stopped = self._stopped_of(name)
        if self._stays.asked(name) or self._alike.pays(name):
            return stopped.drafted, stopped.emitted
        return stopped.doubted(CAUTION * min(1.0, reading / (RISKY * self._memory.costs.plain)))

    def _floor(self, name: str) -> Callable[[int], float]:
        """The chance that all of n tokens are right at which another one costs what it gains; by
        n, in the step that is chosen now."""
        costs, policy = self._memory.costs, self._memory.policy
        rows, each = costs.by_rows, costs.draft(name, 1)
        pace = self._pace / max(self._rates(name, 1)[0], LIKELY)

        def floor(n: int) -> float:
            least = policy.floor(pace * (each + rows[n + 2] - rows[n + 1]))
            assert least is not None
            return least

        return floor

    def _certainty(self, name: str) -> Certainty:
        return self._memory.habits.certainty(name)

    def _stopped_of(self, name: str) -> Stopped:
        if name not in self._stopped:
            habit = self._memory.habits.stopped(name)
            drafted, emitted = habit.drafted, habit.emitted
            if self._alike.pays(name):
                drafted, emitted = self._alike.expects(name, habit)
            self._stopped[name] = Stopped(drafted, emitted)
        return self._stopped[name]

    def _learn_stopped(self, name: str, step: Step) -> None:
        self._certainty(name).observe(self._watch.seen, step.accepted)
        text, drafted, emitted = self._stopped_of(name), step.drafted, len(step.emitted)
        text.observe(drafted, emitted)
        self._alike.drafted(name, drafted, emitted)
        if not self._alike.pays(name):  # chosen for its kind, it tells nothing of others
            self._memory.habits.stopped(name).observe(drafted, emitted)

    def _of(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            self._kinds[kind] = Acceptance(self._memory.habits.of(kind).rates())
        return self._kinds[kind]

    def _rates(self, kind: str, levels: int) -> list[float]:
        return self._of(kind).rates(levels, self._memory.policy.believe)

    def _learn(self, kind: str, right: int, drafted: int) -> None:
        self._of(kind).observe(right, drafted)
        self._memory.habits.of(kind).observe(right, drafted)

    def _say(self, options: Sequence[Option], why: str) -> str:
        """The choice, and the best of what was left, for the trace."""
        chosen, pace = self._chosen, self._pace
        if len(options) == 1:
            vain = any(self._alike.in_vain(name) for name in self._names)
            return "plain: nothing to draft" + (f"; {IN_VAIN}" if vain else "")
        best, most, arm = chosen, -inf, chosen.arm
        for option in options:
            if option.arm != arm:
                worth = option.worth(pace)
                if worth > most or (worth == most and option > best):
                    best, most = option, worth
        than = f"; {_shown(best)}" if best is not chosen else ""
        return f"{_shown(chosen)}{than}{f'; {why}' if why else ''}"


def _kind(proposal: Proposal) -> str:
    return proposal.kind or proposal.source


def _shown(option: Option) -> str:
    most = "up to " * option.stops
    name = f"{option.arm} {most}{option.tokens}" if option.arm else "plain"
    return f"{name}: {option.emits:.2f} in {1000 * option.seconds:.1f} ms"
