"""How a benchmark begins: the bundle loaded as its methods need it, and what is told of that."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import specrt
from specrt.bench.energy import Meter, find
from specrt.runtime.bundle import read_manifest
from specrt.runtime.profile import Profile, read
from specrt.runtime.providers import choose

BASELINE, AUTO = "none", "auto"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under which a plan was run. command: the words that were typed. date: when it began."""

    bundle: Path
    load_s: float
    meter: Meter | None = None
    profile: Profile | None = None
    command: Sequence[str] = ()
    date: str = ""


def begin(
    bundle: str | Path, provider: str, methods: Sequence[str]
) -> tuple[specrt.Model, Circumstances]:
    """Load what the methods need, and note when, how long it took, and what is known of this
    device; for auto the device is measured first, if it was not."""
    folder = Path(bundle)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    place = choose(provider, read_manifest(folder).flavour).provider
    start = perf_counter()
    drafter = BASELINE if set(methods) == {BASELINE} else AUTO
    model = specrt.load(bundle, drafter=drafter, provider=provider, tune=False)
    load_s = perf_counter() - start
    if AUTO in methods and not read(folder, place):
        del model
        model = specrt.load(bundle, provider=provider)
    profile = read(folder, place)
    return model, Circumstances(folder, load_s, find(), profile, sys.argv, date)
