"""For how long a draft model is likely to be asked, once it has read what it missed.

Reading is worth it only if many steps share it. They are as many as lately; or, for one that was
not asked yet, as those in which nothing free is found in what is left of the text; most texts end
long before the room that they were given.
"""

from dataclasses import dataclass, field
from math import exp

RUN_GAIN, FIRST_RUN = 0.3, 8.0  # of the mean length of runs; what it starts from
LASTS = 1.2  # how long a draft model stays that was not asked yet, of what free drafts leave
USUAL, FADE = 128.0, 0.95  # tokens of a text, beforehand; what is left of the past at each end
AHEAD, FOUND = 8.0, 0.6  # tokens that the share of free drafts is known from beforehand; the share


@dataclass(slots=True)
class Ends:
    """How long texts are, of all so far, as if they ended at random: by tokens for each end. One
    that was cut off tells its tokens and no end (the exponential law's maximum likelihood)."""

    tokens: float = USUAL
    ends: float = 1.0

    def wrote(self, tokens: int, *, ended: bool) -> None:
        """A step emitted so many; ended: the last of them ended the text."""
        self.tokens += tokens
        if ended:
            self.tokens, self.ends = FADE * self.tokens, FADE * (self.ends + 1)

    def left(self, room: int) -> float:
        """Tokens that a text goes on for, of the room that it has."""
        usual = self.tokens / self.ends
        return usual * (1 - exp(-room / usual))


@dataclass(slots=True)
class Stays:
    """In one text."""

    _runs: dict[str, tuple[float, int]] = field(default_factory=dict)  # steps: lately, and now
    _written: float = AHEAD
    _found: float = FOUND * AHEAD  # tokens of steps whose draft was free

    def asked(self, name: str) -> bool:
        """Whether it was asked in this text."""
        return name in self._runs

    def goes_on(self, name: str) -> bool:
        """Whether it was asked in the latest step."""
        return name in self._runs and self._runs[name][1] > 0

    def steps(self, name: str, unread: int, left: float, emits: float) -> float:
        """In a row, of so many tokens each, if it were asked now and had to read so many tokens;
        left: those that are still to be written."""
        if name in self._runs:
            return max(1.0, *self._runs[name])
        alone = left * (1 - self._found / self._written)
        return max(1.0, LASTS * min(unread, alone) / emits)

    def wrote(self, tokens: int, *, free: bool) -> None:
        """A step emitted so many; free: its draft was."""
        self._written += tokens
        self._found += tokens * free

    def chose(self, name: str) -> None:
        """A draft model was chosen for a step, "" for none."""
        for other, (mean, now) in self._runs.items():
            if other != name and now:
                self._runs[other] = mean + RUN_GAIN * (now - mean), 0
        if name:
            mean, now = self._runs.get(name, (FIRST_RUN, 0))
            self._runs[name] = mean, now + 1
