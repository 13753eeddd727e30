"""What a step costs here: seconds by rows of the target, and by tokens of each drafter.

Learned from the steps themselves, or started from a profile of the device. Log seconds by rows are
one Gaussian state, a Kalman filter: a step of 5 rows tells much of 6 and less of 16. A machine's
speed goes up and down as a whole (heat, other programs), which moves all of them alike; the shape
of the curve over the rows changes little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

MOST_ROWS = 17  # of a step that a controller chooses: the root and 16 drafted tokens
NOISE, DRIFT, WANDER = 0.08**2, 0.02**2, 0.001**2  # variances of log seconds: of a step, and of the
# machine's speed and the curve's shape from a step to the next
STEEPNESS, SECOND, SMOOTH, ALONE = 0.5**2, 0.1**2, 0.05**2, 0.03**2  # of the curve, see `_doubt`
MEASURED = 0.3  # what is left of doubt (a share of its deviations) where a profile tells
OUTLIER = 0.3  # log seconds: more surprise than this is taken as this
LEAST_GAIN = 0.05  # of a draft's cost, in its running mean
READ_SHARE = 0.25  # reading a token in a block, over drafting one, where nothing is known
ANY = 10.0**2  # variance of the machine's log speed, of which nothing is known
_ALIKE = np.pad(np.ones((MOST_ROWS, MOST_ROWS)), ((1, 0), (1, 0)))  # what slows steps of any rows
_DRIFT = DRIFT * _ALIKE + np.diag([0.0, 0.0, *[WANDER] * (MOST_ROWS - 1)])  # doubt that a step adds


def typical(rows: int) -> float:
    """v(rows) = time(rows) / time(1) where nothing is known: between the native kernels and the
    stock ones.

    >>> typical(1)
    1.0
    """
    return 1.0 if rows == 1 else 1.1 + 0.07 * (rows - 1)


@dataclass(slots=True)
class DraftCost:
    """Of a drafter, in units of the target's one row. token: drafting one; read: reading one of the
    text it has not seen yet."""

    token: float
    read: float
    seen: int = 0


@dataclass(slots=True)
class Costs:
    """Seconds of a step's parts. drafts: by drafter; one that is not in it costs nothing."""

    drafts: dict[str, DraftCost] = field(default_factory=dict)
    curve: Mapping[int, float] = field(default_factory=dict)  # rows -> v(rows), from a profile
    _state: np.ndarray = field(init=False)  # (1 + MOST_ROWS,) log seconds by rows; 0 rows: nothing
    _doubt: np.ndarray = field(init=False)  # its covariance
    _seconds: list[float] = field(init=False)  # exp of the state

    def __post_init__(self) -> None:
        rows = range(1, MOST_ROWS + 1)
        known = [log(self.curve.get(r) or typical(r)) for r in rows]
        self._state = np.array([0.0, *known])
        self._doubt = _doubt([MEASURED if r in self.curve else 1.0 for r in rows])
        self._seconds = np.exp(self._state).tolist()

    @property
    def plain(self) -> float:
        """Seconds of a step of one row."""
        return self._seconds[1]

    @property
    def by_rows(self) -> Sequence[float]:
        """Seconds of a step, its draft left out, by its rows; the first entry means nothing."""
        return self._seconds

    def draft(self, name: str, tokens: int, unread: int = 1) -> float:
        """Seconds for a drafter to propose so many, when it has so many tokens to read first; the
        last one of the text is among them in every case."""
        cost = self.drafts.get(name)
        if cost is None:
            return 0.0
        more = unread - 1 if unread > 1 else 0
        return self._seconds[1] * (cost.token * tokens + cost.read * more)

    def drafting(self, name: str, tokens: float) -> float:
        """Seconds of a step in which a drafter that has read proposes so many, on average."""
        full = int(tokens)
        more = self._seconds[full + 2] - self._seconds[full + 1]
        each = self.draft(name, 1)
        return self._seconds[full + 1] + (tokens - full) * more + tokens * each

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long, its draft left out."""
        if not (0 < rows <= MOST_ROWS and seconds > 0):
            return
        doubt = self._doubt
        toward = doubt[rows]  # what a step of so many rows says of all
        total = float(toward[rows]) + NOISE
        surprise = log(seconds / self._seconds[rows])
        if total < 1:  # something is known already
            surprise = max(-OUTLIER, min(OUTLIER, surprise))
        gain = toward / total
        self._state += gain * surprise
        doubt -= toward[:, None] * gain
        doubt += _DRIFT
        self._seconds = np.exp(self._state).tolist()

    def observe_draft(self, name: str, tokens: int, unread: int, seconds: float) -> None:
        """A drafter proposed so many tokens in so long, after reading `unread`."""
        cost = self.drafts.get(name)
        if cost is None or tokens < 1 or seconds <= 0:
            return
        rows = seconds / self._seconds[1]  # as many of the target's
        extra = max(unread - 1, 0)
        gain = max(1 / (cost.seen + 1), LEAST_GAIN)
        if cost.read * extra <= cost.token * tokens:
            found = max(rows - cost.read * extra, rows / 4) / tokens
            if cost.seen > 2:
                found = max(cost.token / 2, min(cost.token * 2, found))
            cost.token += gain * (found - cost.token)
            cost.seen += 1
        else:
            found = max(rows - cost.token * tokens, 0.1 * rows) / extra
            cost.read += 0.5 * (found - cost.read)


def _doubt(left: Sequence[float]) -> np.ndarray:
    """What is not known before the first step, as a covariance (1 + MOST_ROWS, 1 + MOST_ROWS).
    left: (MOST_ROWS,) the share of its deviation that is left for the curve at 1, 2, … rows.

    The curve may be steeper or flatter as a whole, a second row may cost more or less than the
    kernels of one, neighbours go together, and each number of rows may be a little off by itself.
    """
    rows = np.arange(1, len(left) + 1)
    steep = np.log([typical(int(r)) for r in rows])
    more = (rows > 1).astype(float)
    near = np.exp(-2 * np.abs(np.log(rows[:, None] / rows)))
    curve = STEEPNESS * np.outer(steep, steep) + SECOND * np.outer(more, more)
    curve += (SMOOTH * near + ALONE * np.eye(rows.size)) * np.outer(more, more)
    doubt: np.ndarray = ANY * _ALIKE
    doubt[1:, 1:] += curve * np.outer(left, left)
    return doubt
