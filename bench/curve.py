"""What a step of several rows costs here, and how often drafts must be right to pay for it.

From the device's profile where there is one, else from the benchmark's own steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specrt.runtime.costs import DraftCost
from specrt.runtime.profile import Profile, break_even

LEAST_STEPS = 8  # of so many rows, for a cost that is worth showing

Record = Mapping[str, Any]


def curve(profile: Profile | None, records: Sequence[Record]) -> dict[str, Any] | None:
    """source: profile or steps. v: time(rows) / time(1) by rows. needed: by drafter and tokens of a
    draft, the share of its tokens that must be right, None where none is enough. None if nothing
    is known of more than one row."""
    if profile:
        v, costs = dict(enumerate(profile.curve.v, start=1)), profile.costs({})
        return _told("profile", v, costs.curve, costs.drafts)
    v = of_steps(records)
    return _told("steps", v, v, {}) if len(v) > 1 and 1 in v else None


def of_steps(records: Iterable[Record]) -> dict[int, float]:
    """v by rows: the median of all steps with so many, each taken as the median of its run, over
    that of one row."""
    ms: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for rows, seen in record.get("rows", {}).items():
            ms[int(rows)] += [seen["target_ms"]] * seen["steps"]
    known = {
        rows: float(np.median(ms[rows])) for rows in sorted(ms) if len(ms[rows]) >= LEAST_STEPS
    }
    return {rows: time / known[1] for rows, time in known.items()} if known.get(1) else {}


def _told(
    source: str, v: Mapping[int, float], steps: Mapping[int, float], drafts: Mapping[str, DraftCost]
) -> dict[str, Any]:
    """steps: v with the loop around."""
    found = break_even(steps, drafts, [rows - 1 for rows in v if rows > 1])
    return {
        "source": source,
        "v": {str(rows): value for rows, value in v.items()},
        "needed": {
            name: {str(budget): share for budget, share in shares.items()}
            for name, shares in found.items()
        },
    }
