"""What a step costs here: seconds by rows of the target, and by tokens of each drafter.

Learned from the steps themselves, or started from a profile of the device. A machine's speed goes
up and down as a whole (heat, other programs), so the seconds of one row and the shape of the curve
over the rows are kept apart: a slow minute changes the first and leaves the second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

MOST_ROWS = 33  # of a step whose cost is kept: the root and 32 drafted tokens
NOISE, DRIFT, WANDER = 0.06**2, 0.03**2, 0.003**2  # variances of log seconds: of a step, and of
# the machine's speed and the curve's shape from a step to the next
UNSURE, MEASURED = 0.2**2, 0.05**2  # variance of the curve where nothing, or a profile, tells
OUTLIER = 0.3  # log seconds: more surprise than this is taken as this
LEAST_GAIN = 0.05  # of a draft's cost, in its running mean
READ_SHARE = 0.25  # reading a token in a block, over drafting one, where nothing is known


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
    _speed: float = 0.0  # log seconds of one row
    _speed_variance: float = 100.0  # nothing is known of it
    _shape: list[float] = field(default_factory=list)  # log v(rows)
    _variance: list[float] = field(default_factory=list)
    _seen: list[bool] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = range(MOST_ROWS + 1)
        self._shape = [log(self.curve.get(r) or typical(max(r, 1))) for r in rows]
        self._variance = [MEASURED if r in self.curve else UNSURE for r in rows]
        self._variance[1] = 0.0  # v(1) is 1
        self._seen = [r in self.curve or r == 1 for r in rows]
        self._settle()

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
        return self._seconds[1] * (cost.token * tokens + cost.read * max(unread - 1, 0))

    def catch_up(self, name: str, unread: int) -> float:
        """Of that, what goes into reading."""
        return self.draft(name, 0, unread)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long, its draft left out."""
        if not (0 < rows <= MOST_ROWS and seconds > 0):
            return
        speed, shape = self._speed_variance, self._variance[rows]
        total = speed + shape + NOISE
        surprise = log(seconds) - self._speed - self._shape[rows]
        if total < 1:
            surprise = max(-OUTLIER, min(OUTLIER, surprise))
        self._speed += surprise * speed / total
        self._shape[rows] += surprise * shape / total
        self._speed_variance = speed * (1 - speed / total) + DRIFT
        if rows > 1:
            self._variance[rows] = shape * (1 - shape / total) + WANDER
            self._seen[rows] = True
        self._settle()

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

    def _settle(self) -> None:
        """The seconds of every number of rows. Where none were seen the curve runs between its
        neighbours as the typical one does, and beyond the last one parallel to it."""
        shape, unit = self._shape, exp(self._speed)
        seen = [r for r in range(1, MOST_ROWS + 1) if self._seen[r]]
        for left, right in zip(seen, [*seen[1:], MOST_ROWS + 1], strict=True):
            off = shape[left] - TYPICAL[left]
            ends = shape[right] - TYPICAL[right] if right <= MOST_ROWS else off
            for r in range(left + 1, right):
                part = (r - left) / (right - left)
                shape[r] = TYPICAL[r] + off + part * (ends - off)
        self._seconds = [unit * exp(x) for x in shape]


TYPICAL = [log(typical(max(r, 1))) for r in range(MOST_ROWS + 1)]
