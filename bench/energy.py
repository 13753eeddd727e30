"""Joules used while something runs, where the machine tells.

Two sources: the counters of an x86 processor (RAPL, /sys/class/powercap), often for root alone, and
the power rails of a Jetson (INA3221, /sys/class/hwmon), which are read again and again. They count
the whole processor or board, with all that runs on it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Protocol

WHOLE = ("VDD_IN", "POM_5V_IN")  # rails that feed all others of their board
PERIOD_S = 0.02  # between two looks at the rails; a chip renews its values about as often

Stop = Callable[[], float | None]  # joules since the start; None if the machine stopped telling


class Meter(Protocol):
    """Measures energy over any number of spans, one at a time."""

    @property
    def source(self) -> str: ...  # what is counted, for the reader

    def start(self) -> Stop: ...


def find(sys: Path = Path("/sys")) -> Meter | None:
    """What this machine has, None if it does not tell us."""
    return _rapl(sys / "class" / "powercap") or _rails(sys / "class" / "hwmon")


@dataclass(frozen=True, slots=True)
class Zone:
    """A counter of microjoules that begins anew after the last value of its range."""

    folder: Path
    range_uj: int

    def read(self) -> int:
        return int((self.folder / "energy_uj").read_text())


@dataclass(frozen=True, slots=True)
class Rapl:
    """Packages, and the memory beside them."""

    source: str
    zones: tuple[Zone, ...]

    def start(self) -> Stop:
        before = self._read()

        def stop() -> float | None:
            after = self._read()
            if before is None or after is None:
                return None
            used = zip(self.zones, before, after, strict=True)
            return sum((new - old) % (zone.range_uj + 1) / 1e6 for zone, old, new in used)

        return stop

    def _read(self) -> list[int] | None:
        with suppress(OSError, ValueError):
            return [zone.read() for zone in self.zones]
        return None


def _rapl(powercap: Path) -> Rapl | None:
    """Cores and graphics are parts of a package, psys holds it again: neither is counted."""
    zones, names = [], []
    try:
        for folder in sorted(powercap.glob("intel-rapl:*")):
            name = (folder / "name").read_text().strip()
            if name.startswith("package") or name == "dram":
                zone = Zone(folder, int((folder / "max_energy_range_uj").read_text()))
                zone.read()
                zones.append(zone)
                names.append(name)
    except (OSError, ValueError):  # since 2020 the counters are for root alone
        return None
    return Rapl(f"RAPL {', '.join(names)}", tuple(zones)) if zones else None


@dataclass(frozen=True, slots=True)
class Rail:
    """A channel of an INA3221: millivolts and milliamperes."""

    label: str
    volts: Path
    amperes: Path

    def watts(self) -> float:
        return int(self.volts.read_text()) * int(self.amperes.read_text()) / 1e6


@dataclass(frozen=True, slots=True)
class Rails:
    """Power, looked at every PERIOD_S by a thread of its own."""

    source: str
    rails: tuple[Rail, ...]

    def start(self) -> Stop:
        looks: list[tuple[float, float]] = []
        done, failed = Event(), Event()

        def look() -> None:
            try:
                looks.append((perf_counter(), sum(rail.watts() for rail in self.rails)))
            except (OSError, ValueError):
                failed.set()

        def watch() -> None:
            while not done.wait(PERIOD_S):
                look()

        look()
        watcher = Thread(target=watch, daemon=True)
        watcher.start()

        def stop() -> float | None:
            done.set()
            watcher.join()
            look()
            return None if failed.is_set() else joules(looks)

        return stop


def joules(looks: Sequence[tuple[float, float]]) -> float:
    """Energy of (seconds, watts) looked at in a row, the power between two being their mean.

    >>> joules([(0.0, 4.0), (2.0, 6.0), (3.0, 6.0)])
    16.0
    """
    return sum(
        (end - start) * (before + after) / 2 for (start, before), (end, after) in pairwise(looks)
    )


def _rails(hwmon: Path) -> Rails | None:
    rails = [rail for chip in sorted(hwmon.glob("hwmon*")) for rail in _channels(chip)]
    rails = [rail for rail in rails if rail.label in WHOLE] or rails
    if not rails:
        return None
    return Rails(f"INA3221 {', '.join(rail.label for rail in rails)}", tuple(rails))


def _channels(chip: Path) -> list[Rail]:
    """The connected channels of a chip, none if it is another sort of chip."""
    rails = []
    with suppress(OSError, ValueError):
        if (chip / "name").read_text().strip() != "ina3221":
            return []
        for volts in sorted(chip.glob("in[123]_input")):
            channel = volts.name[2]
            label = (chip / f"in{channel}_label").read_text().strip()
            rail = Rail(label, volts, chip / f"curr{channel}_input")
            if label != "NC":
                rail.watts()
                rails.append(rail)
    return rails
