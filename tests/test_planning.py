"""Costs from data sheets, and the table made of them."""

import pytest

from specrt.bench.planning import DRAFTERS, MACHINES, WORKS, device, gain, table

SERVER = next(machine for machine in MACHINES if "server" in machine.name)


def test_the_formula_gives_what_was_measured_on_two_server_cores() -> None:
    """Measured: 21.5 ms, v(4) = 1.11, v(8) = 1.48, 7.0 ms a draft token."""
    costs = device(SERVER, 1.54e9, 0.49e9)
    assert costs.plain == pytest.approx(0.0215, rel=0.15)
    assert costs.step(4) / costs.plain == pytest.approx(1.11, rel=0.05)
    assert costs.step(8) / costs.plain == pytest.approx(1.48, rel=0.05)
    assert costs.drafts["draft"][0] == pytest.approx(0.007, rel=0.2)


def test_more_arithmetic_makes_rows_cheaper_and_more_bandwidth_dearer() -> None:
    v = {m.name: device(m, 1.54e9, 0.49e9).step(8) / device(m, 1.54e9, 0.49e9).plain
         for m in MACHINES}  # fmt: skip
    assert v["Jetson AGX Orin"] < v["laptop, 8 cores Zen 4"] < v["Apple M2, CPU"]


def test_a_long_prompt_takes_the_gain_of_a_draft_model_away() -> None:
    costs, code = device(SERVER, 1.54e9, 0.49e9), WORKS[1]
    short, long = (gain(costs, code, DRAFTERS["draft"], prompt, 128) for prompt in (50, 2000))
    assert short > 1.4
    assert long == pytest.approx(gain(costs, code, DRAFTERS["lookup"], 2000, 128), rel=0.02)


def test_the_table_has_a_line_for_each_device() -> None:
    lines = list(table(1.54e9, 0.49e9, 50, 24))
    assert len(lines) == 2 + len(MACHINES)
    assert len({line.count("|") for line in lines}) == 1
