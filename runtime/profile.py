"""What a device costs with a bundle, as runtime/tuning.py measured: BUNDLE/profile/<device>.json.

A profile is good for the device, provider, versions and bundle it was measured with, and for no
other: one that does not fit is as if it were not there. Times are whole microseconds.
"""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from specrt.runtime.bundle import MANIFEST, sha256
from specrt.runtime.costs import Costs, DraftCost
from specrt.runtime.errors import BundleError
from specrt.runtime.records import parse_json, read_record
from specrt.runtime.version import VERSION
from specrt.runtime.writing import writing_file

FORMAT = 2
US = 1e-6
FREE = "ngram"  # the drafter whose drafts cost nothing
_PLACES = ("/proc/driver/nvidia/gpus", "/proc/device-tree/model", "/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Key:
    """What a profile holds for. bundle: the SHA-256 of the manifest."""

    device: str
    provider: str
    specrt: str
    onnxruntime: str
    bundle: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps of the target after a text of `context` tokens. us: of 1, 2, … rows; spread: of their
    times over that of one row, (upper - lower quartile) / median in per mille, of the median
    number of rows."""

    context: int
    us: tuple[int, ...]
    spread: int

    def __post_init__(self) -> None:
        if len(self.us) < 2 or min(self.us) < 1:
            raise BundleError(f"a curve needs two times above 0, not {self.us[:3]}")

    @property
    def v(self) -> tuple[float, ...]:
        """time(rows) / time(1), for 1, 2, … rows."""
        return tuple(us / self.us[0] for us in self.us)


@dataclass(frozen=True, slots=True)
class Drafting:
    """A draft model: drafting a token, and reading one of the text."""

    name: str
    token_us: int
    read_us: int

    def __post_init__(self) -> None:
        if min(self.token_us, self.read_us) < 1:
            raise BundleError(f"the times of draft {self.name} must be above 0")


@dataclass(frozen=True, slots=True)
class Profile:
    """brief: measured in passing, as a bundle was first opened here. threads: of each graph, those
    that were fastest. prefill: tokens a second of a prompt. overhead_us: of a step outside the
    graphs."""

    format: int
    key: Key
    brief: bool
    threads: int
    curves: tuple[Curve, ...]
    drafts: tuple[Drafting, ...]
    prefill: int
    overhead_us: int

    def __post_init__(self) -> None:
        if not self.curves:
            raise BundleError("a profile needs a curve")

    @property
    def curve(self) -> Curve:
        """The one to decide by: of the context in the middle."""
        return self.curves[len(self.curves) // 2]

    def costs(self, guesses: Mapping[str, DraftCost]) -> Costs:
        """What a controller starts from; a guess stays where a draft was not measured."""
        steps = [us + self.overhead_us for us in self.curve.us]
        one, drafts = steps[0], dict(guesses)
        for draft in self.drafts:
            drafts[draft.name] = DraftCost(draft.token_us / one, draft.read_us / one, seen=10)
        return Costs(drafts, {rows: us / one for rows, us in enumerate(steps, start=1)})

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def key(folder: Path, provider: str) -> Key:
    """Of a bundle with a provider on this device, now."""
    return Key(
        device=device(provider),
        provider=provider,
        specrt=VERSION,
        onnxruntime=ort.__version__,
        bundle=sha256(folder / MANIFEST),
    )


def place(folder: Path, wanted: Key) -> Path:
    """The file of a profile."""
    return folder / "profile" / f"{wanted.device}-{wanted.provider}.json"


def read(folder: Path, provider: str) -> Profile | None:
    """The profile of a bundle on this device; None if there is none that holds."""
    wanted = key(folder, provider)
    with suppress(OSError, BundleError):
        raw = parse_json(place(folder, wanted).read_bytes())
        if isinstance(raw, dict) and raw.get("format") == FORMAT:
            found = read_record(Profile, raw, "profile")
            return found if found.key == wanted else None
    return None


def can_keep(folder: Path) -> bool:
    """Whether a bundle may be written to."""
    place = folder / "profile"
    with suppress(OSError):
        place.mkdir(exist_ok=True)
        return os.access(place, os.W_OK)
    return False


def write(folder: Path, profile: Profile) -> Path | None:
    """Keep a profile in its bundle; where, or None if the bundle is not to be written to."""
    file = place(folder, profile.key)
    try:
        file.parent.mkdir(exist_ok=True)
        with writing_file(file) as out:
            out.write(profile.to_json())
    except OSError:
        return None
    return file


def device(provider: str) -> str:
    """A name for this device that can be a file's: its GPU's for a provider that uses it, else that
    of the board or processor.

    >>> named("Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz")
    'intel-core-i5-8250u-cpu-1.60ghz'
    """
    gpus, board, processors = map(Path, _PLACES)
    with suppress(OSError):
        for info in sorted(gpus.glob("*/information")) if provider != "cpu" else ():
            for line in info.read_text().splitlines():
                if line.startswith("Model:"):
                    return named(line.partition(":")[2])
    with suppress(OSError):
        return named(board.read_text())
    with suppress(OSError):
        for line in processors.read_text().splitlines():
            if line.startswith("model name"):
                return named(line.partition(":")[2])
    return named(platform.processor() or platform.machine())


def named(text: str) -> str:
    """Lower case, with hyphens between what are letters, digits and dots."""
    text = re.sub(r"\((r|tm)\)", " ", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")[:60] or "unknown"


def break_even(
    steps: Mapping[int, float], drafts: Mapping[str, DraftCost], budgets: Sequence[int]
) -> dict[str, dict[int, float | None]]:
    """By drafter and tokens of a draft: see `needed`. steps: by rows, in steps of one row."""
    tokens = {FREE: 0.0, **{name: draft.token for name, draft in drafts.items()}}
    return {
        name: {n: needed(steps[n + 1] + n * token, n) for n in budgets}
        for name, token in tokens.items()
    }


def needed(cost: float, budget: int) -> float | None:
    """How often each token of a draft of `budget` must be right for its step to be as fast as plain
    decoding; None where even a draft that is always right is slower. cost: of the step with its
    draft, in steps of one row.

    >>> needed(1.25, 1)
    0.25
    """
    wins = cost - 1  # tokens that have to be accepted
    if wins > budget:
        return None
    chance = np.linspace(0.0, 1.0, 1001)
    accepted = (chance[:, None] ** np.arange(1, budget + 1)).sum(axis=1)
    return float(chance[int((accepted >= wins - 1e-9).argmax())])
