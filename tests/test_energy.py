"""Energy from folders laid out as the kernel lays out its own."""

from collections.abc import Mapping
from pathlib import Path
from threading import Event

import pytest

from specrt.bench import energy

PACKAGE = {"name": "package-0", "energy_uj": "1000000", "max_energy_range_uj": "262143328850"}
CHIP = {"name": "ina3221", "in1_label": "VDD_IN", "in1_input": "5000", "curr1_input": "2000"}


def folder(sys: Path, inside: str, files: Mapping[str, str]) -> Path:
    """Files of one line in a folder of /sys."""
    made = sys / inside
    made.mkdir(parents=True)
    for name, text in files.items():
        (made / name).write_text(text + "\n")
    return made


def zone(sys: Path, name: str, **changes: str) -> Path:
    return folder(sys, f"class/powercap/{name}", {**PACKAGE, **changes})


def spent(sys: Path, file: Path, after: str) -> float | None:
    """Joules counted while a file changes to another value."""
    meter = energy.find(sys)
    assert meter
    stop = meter.start()
    file.write_text(after)
    return stop()


def test_a_machine_that_tells_nothing_has_no_meter(tmp_path: Path) -> None:
    assert energy.find(tmp_path) is None


def test_joules_are_what_a_package_counted(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0")
    assert spent(tmp_path, package / "energy_uj", "3500000") == 2.5


def test_a_counter_may_begin_anew(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", energy_uj="9000000", max_energy_range_uj="9999999")
    assert spent(tmp_path, package / "energy_uj", "500000") == 1.5


def test_packages_and_memory_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "psys"}
    for number, name in zones.items():
        folder(tmp_path, f"class/powercap/intel-rapl:{number}", {**PACKAGE, "name": name})
    zone(tmp_path, "intel-rapl-mmio:0")
    meter = energy.find(tmp_path)
    assert meter
    assert meter.source == "RAPL package-0, dram"


def test_counters_that_only_root_may_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0")
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert energy.find(tmp_path) is None


def test_a_counter_that_goes_away_gives_no_joules(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0")
    assert spent(tmp_path, package / "energy_uj", "") is None


def rails(tmp_path: Path, channels: Mapping[str, str]) -> energy.Meter | None:
    """The meter of one chip whose channels have these labels, each at 10 W."""
    files = {"name": "ina3221"}
    for channel, label in channels.items():
        files[f"in{channel}_label"] = label
        files |= {f"in{channel}_input": "5000", f"curr{channel}_input": "2000"}
    files["in7_label"] = "sum of shunt voltages"
    folder(tmp_path, "class/hwmon/hwmon1", files)
    return energy.find(tmp_path)


def test_of_a_boards_rails_the_one_that_feeds_all_is_counted(tmp_path: Path) -> None:
    meter = rails(tmp_path, {"1": "VDD_IN", "2": "VDD_CPU_GPU_CV", "3": "VDD_SOC"})
    assert meter
    assert meter.source == "INA3221 VDD_IN"


def test_where_none_feeds_all_every_connected_one_is(tmp_path: Path) -> None:
    meter = rails(tmp_path, {"1": "VDD_GPU_SOC", "2": "NC", "3": "VIN_SYS_5V0"})
    assert meter
    assert meter.source == "INA3221 VDD_GPU_SOC, VIN_SYS_5V0"


def test_the_chip_is_found_through_the_link_to_its_bus(tmp_path: Path) -> None:
    real = folder(tmp_path, "bus/i2c/devices/1-0040/hwmon/hwmon3", CHIP)
    (tmp_path / "class" / "hwmon").mkdir(parents=True)
    (tmp_path / "class" / "hwmon" / "hwmon3").symlink_to(real)
    assert energy.find(tmp_path)


def test_another_chip_is_no_meter(tmp_path: Path) -> None:
    folder(tmp_path, "class/hwmon/hwmon0", {**CHIP, "name": "coretemp"})
    assert energy.find(tmp_path) is None


def test_a_rail_at_ten_watts_gives_ten_joules_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = rails(tmp_path, {"1": "VDD_IN"})
    assert meter
    monkeypatch.setattr(energy, "PERIOD_S", 60.0)  # only the looks at start and stop
    monkeypatch.setattr(energy, "perf_counter", iter([100.0, 103.0]).__next__)
    assert meter.start()() == 30.0


def test_between_two_looks_the_power_is_their_mean() -> None:
    assert energy.joules([(0.0, 4.0), (2.0, 6.0), (3.0, 6.0)]) == 16.0


def test_the_rails_are_looked_at_while_something_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = rails(tmp_path, {"1": "VDD_IN"})
    assert meter
    looked = Event()

    def clock() -> float:
        times.append(float(len(times)))
        if len(times) == 5:
            looked.set()
        return times[-1]

    times: list[float] = []
    monkeypatch.setattr(energy, "PERIOD_S", 0.001)
    monkeypatch.setattr(energy, "perf_counter", clock)
    stop = meter.start()
    assert looked.wait(30)
    assert stop() == 10.0 * (len(times) - 1)


def test_a_rail_that_goes_away_gives_no_joules(tmp_path: Path) -> None:
    rails(tmp_path, {"1": "VDD_IN"})
    current = tmp_path / "class" / "hwmon" / "hwmon1" / "curr1_input"
    assert spent(tmp_path, current, "") is None
