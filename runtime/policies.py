"""Which of the possible drafts to take: rules behind one interface, compared by bench/replay.py.

A policy sees what each option is expected to emit and to take, and afterwards what the chosen one
did. It is kept from text to text, so it may learn for as long as the model is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import NamedTuple, Protocol

import numpy as np

from specrt.runtime.acceptance import mean
from specrt.runtime.errors import RequestError

PROBES, SURPLUS = 0.01, 0.1  # shares of all time, and of what drafts win, that probes may lose
MOST_PROBES = 0.03  # the share of all time that they may lose at most
SLOW, SIGN, SIGNS, LOAN = 1.15, 2, 2, 4  # where it is hardly faster than plain decoding, two free
# drafts with two tokens right tell that a text became easier: a probe may then lose so many steps
FIRST_WAIT, LONGEST_WAIT = 8, 128  # steps between probes of a drafter that does not pay
SIZES = (1, 2, 4, 8)  # budgets among which the bandits choose, for each drafter
UP, DOWN = 2, 1  # of the heuristic, after a draft that was right and one that was not


class Option(NamedTuple):
    """A draft that could be made, arm "" being none. emits, seconds: what the step is expected to.
    free: the proposal is there already. stops: it may stop before so many tokens, and what it would
    do is foreseen. lasting: of the seconds those from which later steps profit, since what a draft
    model has read stays read. hope: what it would be worth were it always right, and asked for
    long."""

    arm: str
    tokens: int
    emits: float
    seconds: float
    free: bool = True
    stops: bool = False
    lasting: float = 0.0
    hope: float = 0.0

    def worth(self, pace: float) -> float:
        """Tokens more than its time would give at this pace, in tokens a second."""
        return self.emits - pace * (self.seconds - self.lasting)


class Outcome(NamedTuple):
    """What became of an option."""

    drafted: int
    accepted: int
    emitted: int
    seconds: float


class Policy(Protocol):
    """Chooses among options; the first one is plain decoding. by_worth: never another one of a
    free drafter than that of greatest worth, so that it need not see the others."""

    by_worth: bool

    def believe(self, right: float, wrong: float) -> float:
        """The probability to act on, of counts that favour the recent and include what was known
        beforehand."""

    def floor(self, worthwhile: float) -> float | None:
        """The chance that all tokens are right below which a draft model stops; None: it never
        does. worthwhile: where another token costs what it gains."""

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        """An option, and a word on why if it is not for its worth at this pace."""

    def observe(self, option: Option, outcome: Outcome) -> None: ...


@dataclass(slots=True)
class CostOptimal:
    """The draft that gains most. At a pace of so many tokens a second a step of t seconds must
    emit pace * t to be worth it; the option that exceeds this most is what maximises tokens a
    second in the long run, where a step's options differ from those of the next one.

    A drafter that costs time, and whose drafts cannot be foreseen, is probed now and then while it
    does not pay, if it would were it always right: at waits that double when it fails, at once
    after it was mostly right, and only while the purse allows it, or lends where the text seems to
    have changed.
    """

    purse: float = 0.0  # seconds that probes may lose
    _waits: dict[str, int] = field(default_factory=dict)  # steps, by drafter
    _idle: dict[str, int] = field(default_factory=dict)  # steps since it was asked
    _hopeful: set[str] = field(default_factory=set)  # right at the latest probe
    _signs: int = 0  # free drafts that were right, since the latest probe
    _probing: bool = False
    _plain: float = 0.0  # seconds of a step of one row

    by_worth = True
    believe = staticmethod(mean)

    def floor(self, worthwhile: float) -> float | None:
        return worthwhile

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        self._plain, self._probing = options[0].seconds, False
        best, most = options[0], options[0].worth(pace)
        rivals: dict[str, list[tuple[float, Option]]] = {}
        for option in options[1:]:
            worth = option.emits - pace * (option.seconds - option.lasting)
            if worth > most:
                best, most = option, worth
            if not (option.free or option.stops):
                rivals.setdefault(option.arm, []).append((worth, option))
        for arm, those in rivals.items():
            wait = self._waits.get(arm, FIRST_WAIT)
            if arm == best.arm:
                self._idle[arm], self._waits[arm] = 0, max(wait // 2, FIRST_WAIT)
                continue
            idle = self._idle[arm] = self._idle.get(arm, 0) + 1
            if idle <= wait and arm not in self._hopeful:
                continue
            worth, option = max(those)
            loss = (most - worth) / pace + option.lasting
            changed = self._signs >= SIGNS and pace * self._plain < SLOW
            loan = LOAN * self._plain if changed and self.purse > -LOAN * self._plain else 0.0
            if loss <= max(self.purse, loan) and any(o.hope > most for _, o in those):
                self._probing, self._signs = True, 0
                return option, f"probe after {idle - 1} steps without"
        return best, ""

    def observe(self, option: Option, outcome: Outcome) -> None:
        won = outcome.emitted * self._plain - outcome.seconds if option.arm else 0.0
        income = PROBES * outcome.seconds + SURPLUS * max(won, 0.0)
        self.purse += min(income, MOST_PROBES * outcome.seconds)
        self._signs += option.free and outcome.accepted >= SIGN
        if self._probing:
            arm = option.arm
            self.purse -= max(-won, 0.0)
            self._idle[arm] = 0
            wait = self._waits.get(arm, FIRST_WAIT)
            if 2 * outcome.accepted > outcome.drafted:  # rather right than not
                self._hopeful.add(arm)
                self._waits[arm] = max(wait // 8, FIRST_WAIT)
            else:
                self._hopeful.discard(arm)
                self._waits[arm] = min(2 * wait, LONGEST_WAIT)


@dataclass(slots=True)
class Thompson(CostOptimal):
    """The same with probabilities drawn from what the counts leave open: it probes by itself."""

    rng: "np.random.Generator" = field(default_factory=lambda: np.random.default_rng(0))

    def believe(self, right: float, wrong: float) -> float:
        return float(self.rng.beta(right, wrong))

    def floor(self, worthwhile: float) -> float | None:
        return None


@dataclass(slots=True)
class Heuristic:
    """Two more after a draft that was right to its end, one less after another; the first drafter
    that has something. It knows nothing of costs."""

    budget: int = 4
    by_worth = False

    def believe(self, right: float, wrong: float) -> float:
        return mean(right, wrong)

    def floor(self, worthwhile: float) -> float | None:
        return None

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        chosen = options[0]
        for option in options[1:]:
            if chosen.arm in ("", option.arm) and option.tokens <= self.budget:
                chosen = option
        return chosen, f"up {UP}, down {DOWN}"

    def observe(self, option: Option, outcome: Outcome) -> None:
        if outcome.drafted:
            right = outcome.accepted == outcome.drafted
            self.budget = max(self.budget + (UP if right else -DOWN), 1)


@dataclass(slots=True)
class Confident:
    """A draft model drafts until it is no longer certain, as in SpecDec++ with the model's own
    probability for the trained head's; without one, what was found. It knows nothing of costs."""

    least: float = 0.3  # the chance that all tokens are right
    by_worth = False

    def believe(self, right: float, wrong: float) -> float:
        return mean(right, wrong)

    def floor(self, worthwhile: float) -> float | None:
        return self.least

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        return max(options, key=lambda o: (not o.free, o.tokens)), "confidence"

    def observe(self, option: Option, outcome: Outcome) -> None:
        """Learns nothing."""


@dataclass(slots=True)
class Ucb:
    """UCB1 over drafters and budgets: the mean tokens a second of an arm, in units of the best seen
    so far, plus a bonus for what was tried seldom."""

    tried: dict[tuple[str, int], int] = field(default_factory=dict)
    pace: dict[tuple[str, int], float] = field(default_factory=dict)
    by_worth = False

    def believe(self, right: float, wrong: float) -> float:
        return mean(right, wrong)

    def floor(self, worthwhile: float) -> float | None:
        return None

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        arms = _arms(options)
        for arm, option in arms.items():
            if arm not in self.tried:
                return option, "ucb, first try"
        total = sum(self.tried.values())
        most = max(self.pace.values())

        def bound(arm: tuple[str, int]) -> float:
            return self.pace[arm] / most + sqrt(2 * log(total) / self.tried[arm])

        return arms[max(arms, key=bound)], "ucb"

    def observe(self, option: Option, outcome: Outcome) -> None:
        arm = option.arm, option.tokens
        n = self.tried[arm] = self.tried.get(arm, 0) + 1
        held = self.pace.get(arm, 0.0)
        self.pace[arm] = held + (outcome.emitted / outcome.seconds - held) / n


@dataclass(slots=True)
class Exp3:
    """Exponential weights over drafters and budgets: for streams that change against us."""

    rate: float = 0.1
    rng: "np.random.Generator" = field(default_factory=lambda: np.random.default_rng(0))
    losses: dict[tuple[str, int], float] = field(default_factory=dict)
    _chance: float = 1.0
    _best: float = 0.0  # tokens a second
    by_worth = False

    def believe(self, right: float, wrong: float) -> float:
        return mean(right, wrong)

    def floor(self, worthwhile: float) -> float | None:
        return None

    def choose(self, options: Sequence[Option], pace: float) -> tuple[Option, str]:
        arms = _arms(options)
        losses = [self.losses.get(arm, 0.0) for arm in arms]
        weights = [exp(-self.rate * (loss - min(losses))) for loss in losses]
        total = sum(weights)
        place = int(self.rng.choice(len(weights), p=[w / total for w in weights]))
        self._chance = weights[place] / total
        return list(arms.values())[place], "exp3"

    def observe(self, option: Option, outcome: Outcome) -> None:
        pace = outcome.emitted / outcome.seconds
        self._best = max(self._best, pace)
        arm = option.arm, option.tokens
        loss = (1 - pace / self._best) / self._chance
        self.losses[arm] = self.losses.get(arm, 0.0) + loss


def _arms(options: Sequence[Option]) -> dict[tuple[str, int], Option]:
    """Those whose budget is none or one of SIZES."""
    return {(o.arm, o.tokens): o for o in options if not o.arm or o.tokens in SIZES}


COST = "cost"  # the default
POLICIES: Mapping[str, Callable[[], Policy]] = {
    COST: CostOptimal,
    "heuristic": Heuristic,
    "confidence": Confident,
    "ucb": Ucb,
    "exp3": Exp3,
    "thompson": Thompson,
}


def named(name: str) -> Policy:
    """A new policy of that name."""
    if name not in POLICIES:
        raise RequestError(f"no policy {name!r}: there are {', '.join(POLICIES)}")
    return POLICIES[name]()
