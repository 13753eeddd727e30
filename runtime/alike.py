"""Texts whose prompts resemble a new one's, and whether a draft model's reading paid there.

Whoever asks again and again uses a template. Whether a draft model is worth the reading of a long
prompt shows only while the text is written; in earlier texts of the kind it was seen. Resemblance
is the share of tokens and pairs of tokens in common (Jaccard's index), each weighted by how rare it
is among the texts kept (inverse document frequency, Spärck Jones 1972); what a text tells counts by
its resemblance (kernel regression, Nadaraya and Watson 1964).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

import numpy as np

from specrt.runtime.confidence import Stopped
from specrt.runtime.costs import Costs

KEPT, BINS, END = 64, 2**12, 256  # texts; bins of tokens and pairs; tokens of a prompt's ends
HALF = 0.2  # the resemblance at which a text counts half: templates have 0.2 to 0.3, others < 0.05
FAINT, ENOUGH = 0.01, 0.5  # weights: of a text that is left out; of all together, to tell something
DOUBT = 0.5  # of the reading, the deviation of its gain from text to text before it was seen
GENERAL = 2.0  # steps that what all texts say of a draft model is worth
LEAST_TEXT, LEAST_READING = 8, 2.0  # tokens that tell something; steps of one row worth a question
_SPREAD, _SHIFT = np.uint32(2654435769), np.uint32(20)  # Knuth's multiplicative hash, 12 bits
_PAIR = np.uint32(40503)


@dataclass(slots=True)
class Told:
    """What a text told. free: tokens of steps whose draft was free. alone: steps of one row that it
    would have taken without draft models. drafts: by draft model, see `Stopped`."""

    written: int = 0
    free: int = 0
    alone: float = 0.0
    drafts: dict[str, "Drafts"] = field(default_factory=dict)


@dataclass(slots=True)
class Drafts:
    """Of a draft model in a text: steps, tokens drafted and emitted in them."""

    steps: int = 0
    drafted: int = 0
    emitted: int = 0


class Kin(NamedTuple):
    """An earlier text, and how much it counts: 0 to 1."""

    weight: float
    told: Told


class Past:
    """The latest texts."""

    def __init__(self) -> None:
        self._bins = np.full((KEPT, BINS), 0, np.float32)  # written now, not in a first step
        self._counts = np.zeros(BINS, np.float32)  # in how many texts each is
        self._told: list[Told] = []
        self._begun = 0

    def like(self, new: np.ndarray) -> list[Kin]:
        """Those that resemble a new one, whose prompt has such bins."""
        found = weights(new, self._bins[: len(self._told)], self._counts).tolist()
        return [
            Kin(weight, told)
            for weight, told in zip(found, self._told, strict=True)
            if weight > FAINT
        ]

    def begin(self, new: np.ndarray) -> Told:
        """A new text, whose `Told` is its controller's to write."""
        own, place = Told(), self._begun % KEPT
        self._told[place : place + 1] = [own]
        self._counts += new - self._bins[place]
        self._bins[place] = new
        self._begun += 1
        return own


def bins(prompt: Sequence[int]) -> np.ndarray:
    """(BINS,) float32, 1 where a token or a pair of the prompt's two ends falls."""
    ends = prompt if len(prompt) <= 2 * END else [*prompt[:END], *prompt[-END:]]
    ids = np.array(ends, np.int64).astype(np.uint32)
    found = np.zeros(BINS, np.float32)
    for keys in (ids, ids[:-1] * _PAIR + ids[1:]):
        found[keys * _SPREAD >> _SHIFT] = 1
    return found


def weights(new: np.ndarray, old: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) how much each of n texts counts. new: (BINS,), old: (n, BINS), as `bins` gives them;
    counts: (BINS,), the sum of old. What all of them have, as the frame of a chat, counts nothing.
    """
    rarity = np.log((len(old) + 1) / np.maximum(counts + new, 1))
    shared = old @ (rarity * new)
    either = old @ rarity + rarity @ new - shared
    alike = (shared / np.maximum(either, 1e-6)) ** 4
    found: np.ndarray = alike / (alike + HALF**4)
    return found


class Alike:
    """For one text. Prompts are compared as it is made: before the first step, not in it."""

    def __init__(self, past: Past, prompt: Sequence[int]) -> None:
        self._past, self._bins = past, bins(prompt)
        self._kin, self._told = past.like(self._bins), Told()
        self._pays: dict[str, bool | None] = {}  # None: these texts do not say
        self._longest = 0

    def begin(self) -> None:
        """From here on it is one of the past ones."""
        self._told = self._past.begin(self._bins)

    def wrote(self, tokens: int, cost: float, *, free: bool, asked: bool) -> None:
        """A step emitted so many for so many steps of one row; free, asked: whose its draft was."""
        self._told.written += tokens
        self._told.free += tokens * free
        self._told.alone += tokens if asked else cost

    def drafted(self, name: str, tokens: int, emitted: int) -> None:
        """A draft model's draft stopped after so many."""
        drafts = self._told.drafts
        of = drafts[name] = drafts.get(name) or Drafts()
        of.steps, of.drafted, of.emitted = of.steps + 1, of.drafted + tokens, of.emitted + emitted

    def judge(self, name: str, unread: int, costs: Costs, general: Stopped) -> None:
        """Whether a draft model's reading of so many tokens pays; after `begin`."""
        self._pays[name] = self._judged(name, unread, costs, general)

    def pays(self, name: str) -> bool:
        """Whether it surely does."""
        return self._pays.get(name) is True

    def in_vain(self, name: str) -> bool:
        """Whether it surely does not, in a text that is no longer than those that say so."""
        return self._pays.get(name) is False and self._told.written <= self._longest

    def expects(self, name: str, general: Stopped) -> tuple[float, float]:
        """Tokens that a draft will have and its step emit."""
        drafted, emitted, steps = GENERAL * general.drafted, GENERAL * general.emitted, GENERAL
        for weight, told in self._kin:
            if of := told.drafts.get(name):
                drafted, emitted = drafted + weight * of.drafted, emitted + weight * of.emitted
                steps += weight * of.steps
        return drafted / steps, emitted / steps

    def _judged(self, name: str, unread: int, costs: Costs, general: Stopped) -> bool | None:
        reading = costs.draft(name, 0, unread) / costs.plain
        tell = [kin for kin in self._kin if kin.told.written >= LEAST_TEXT]
        total = sum(weight for weight, _ in tell)
        self._longest = max((told.written for _, told in tell), default=0)
        if reading < LEAST_READING or total < ENOUGH:
            return None
        drafted, emitted = self.expects(name, general)
        step = costs.drafting(name, drafted) / costs.plain
        gains = [gain(told, emitted, step) - reading for _, told in tell]
        mean = sum(w * g for (w, _), g in zip(tell, gains, strict=True)) / total
        spread = sum(w * (g - mean) ** 2 for (w, _), g in zip(tell, gains, strict=True))
        doubt = sqrt(((DOUBT * reading) ** 2 + spread) / total)
        return mean > 0 if abs(mean) > doubt else None


def gain(told: Told, emitted: float, step: float) -> float:
    """Steps of one row that a draft model which had read would have saved in a text, with steps
    that take and emit so much wherever nothing free was found. Such a step has to be worth it at
    the pace without it, see `Option.worth`."""
    pace = max(1.0, told.written / told.alone)
    steps = (told.written - told.free) / emitted
    return steps * ((emitted - 1) / pace - (step - 1))
