"""README.md's tables, as bench/readme.py writes them: they say what the documents say."""

from typing import Any

import pytest

from specrt.bench.readme import BEGIN, END, MODELS, PEER, lines, replaced
from specrt.bench.report import summarise

EXPORT = {
    "drafts": ["draft.gguf"],
    "weights": "carried",
    "default_weights": True,
    "kl": 0.00123,
    "agreement": 0.976,
    "seconds": 151.6,
    "peak_rss_mb": 2140.0,
}


def record(drafter: str, prompt: str, speed: float, **more: Any) -> dict[str, Any]:
    """A run of 10 tokens, the first after 0.5 s, the others at `speed` tokens a second."""
    seconds = 9 / speed
    return {
        **{"drafter": drafter, "prompt": prompt, "kind": "edit", "error": None, "wall_s": 1.0},
        **{"tokens": 10, "steps": 10, "drafted": 0, "accepted": 0, "ttft_s": 0.5},
        **{"tokens_per_s": speed, "decode_s": seconds, "energy_j": None},
        **{"answer_tokens_per_s": 10 / (0.5 + seconds), "tried_at": [], "accepted_at": []},
        **{"step_ms": [1.0], "step_tokens": [1], "identical": None},
        **{f"{part}_s": 0.2 for part in ("prompt", "draft", "target", "verify", "overhead")},
        **more,
    }


def document(*records: dict[str, Any], drafters: tuple[str, ...]) -> dict[str, Any]:
    """Of two questions, a and b."""
    about = {"cpu": "A chip", "threads": 2, "platform": "an OS", "python": "3.11"}
    return {
        "date": "2026-11-30T10:00:00+00:00",
        "environment": {**about, "onnxruntime": "1.32.0"},
        "options": {"drafters": [*drafters], "prompts": ["a", "b"], "max_tokens": 10},
        **{"load_s": 0.2, "peak_rss_mb": 200.0, "records": [*records]},
        "summary": summarise(records),
    }


NAMES = ("none", "ngram", "auto")
PLAIN = [
    record("none", "a", 10.0, identical=True),
    record("none", "b", 20.0, identical=True),
]
RUNS = [
    *PLAIN,
    record("ngram", "a", 20.0, identical=True),
    record("ngram", "b", 20.0, identical=True),
    record("auto", "a", 30.0, identical=True),
    record("auto", "b", 30.0, identical=False),
]
BESIDE = record(PEER, "a", 5.0, load_s=0.8, peak_rss_mb=400.0, ttft_s=1.0)
OWN = document(*RUNS, drafters=NAMES)


def told(**results: dict[str, Any]) -> list[str]:
    """The lines. results: documents, whose names have `_` in place of `-`."""
    named = {name.replace("_", "-"): made for name, made in results.items()}
    return [*lines({"smollm2": OWN, **named})]


def cells(page: list[str], start: str) -> list[str]:
    """What follows `start` in the one row that it begins."""
    (found,) = (line for line in page if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_speeds_and_speed_ups_are_those_of_the_summary() -> None:
    page = told()
    assert cells(page, "plain") == ["15", "15", ""]
    assert cells(page, "`auto`") == ["30", "30", "1 of 2"]
    assert cells(page, "speed-up, `auto`") == ["**2.25**", "2.25", ""]  # of 3 and 1.5
    assert cells(page, "of whole answers, `auto`") == ["**1.47**", "1.47", ""]  # of 1.75, 1.1875


def test_the_machine_and_the_day_stand_before_the_tables() -> None:
    text = " ".join(told())
    assert "A chip, 2 threads, an OS; Python 3.11, ONNX Runtime 1.32.0; 2026-11-30." in text


def test_what_was_not_measured_has_no_table() -> None:
    assert sum(line.startswith("|---") for line in told()) == 1


def test_a_peer_stands_beside_every_drafter() -> None:
    failed = {**BESIDE, "prompt": "b", "error": "too slow"}
    page = told(peers_coder=document(*RUNS, BESIDE, failed, drafters=NAMES))
    assert cells(page, "specrt plain") == ["15", "1.00", "1.00", "2 of 2", "0.20", "200"]
    assert cells(page, "specrt `auto`")[:2] == ["30", "2.25"]
    assert cells(page, PEER) == ["5", "0.50", "0.61", "1 of 2", "0.80", "400"]


def test_how_long_an_engine_had_is_told() -> None:
    beside = document(*RUNS, BESIDE, drafters=NAMES)
    beside["options"]["peer_seconds"] = 240
    assert "each mode having 240 s for all" in " ".join(told(peers_smollm2=beside))


def test_what_a_step_costs_outside_onnx_runtime_stands_by_drafter_and_sampling() -> None:
    rows = [
        {"sampling": sampling, "drafter": drafter, "ms": {"step": 9.0, "outside": outside}}
        for sampling, drafter, outside in (
            ("greedy", "none", 0.251),
            ("greedy", "ngram", 0.3),
            ("0.8", "none", 0.5),
            ("0.8", "ngram", 0.7),
        )
    ]
    page = told(overhead={"vocab": 151936, "rows": rows})
    table = page[page.index("| milliseconds a step | greedy | 0.8 |") :]
    assert cells(table, "plain") == ["0.25", "0.50"]
    assert cells(table, "`ngram`") == ["0.30", "0.70"]


def test_steps_of_kernels_stand_with_the_memory_of_their_rounds() -> None:
    times = {"1": 20.0, "2": 20.0, "4": 20.0, "8": 28.0, "16": 50.0, "512": 1280.0}
    kernels = {
        **{"ms": {"native": times}, "ratios": {"native": {"v8": 1.75}}},
        "memory_gb_per_s": [41.2, 70.4, 43.0],
        "facts": {"native": {"kl": 0.00096, "bytes": 1_128_669_760}},
        "load": {"native": {"load_s": 0.01, "own_mb": 60.0}},
    }
    page = told(kernels_coder=kernels)
    row = ["20.0", "20.0", "28.0", "1.75", "400", "0.0010", "0.01", "60", "1129"]
    assert cells(page, "specrt's kernels, the GGUF's blocks") == row
    assert "the memory gives 41 to 70 GB/s" in " ".join(page)


def test_same_texts_are_of_all_runs_with_drafts() -> None:
    page = told(same_coder_int8=OWN)
    assert cells(page, f"{MODELS['coder']}, int8") == ["3 of 4", "-", "-", "-", "-"]


def test_ratios_are_of_the_run_that_holds_no_draft() -> None:
    beside = document(PLAIN[0], BESIDE, drafters=("none",))
    page = told(same_coder_int8=OWN, genai_coder_int8=beside)
    assert cells(page, f"{MODELS['coder']}, int8") == ["3 of 4", "2.00", "0.50", "0.25", "0.50"]


def test_an_exports_row_is_its_document() -> None:
    row = ["carried (default)", "0.0012", "98 %", "152 s", "2.1 GB"]
    assert cells(told(export_coder=EXPORT), f"{MODELS['coder']}, with its draft") == row


def test_an_export_without_checks_has_no_quality() -> None:
    bare = {**EXPORT, "kl": None, "agreement": None, "default_weights": False, "drafts": []}
    page = told(export_coder_int4={**bare, "weights": "int4"})
    assert cells(page, MODELS["coder"])[:3] == ["int4", "-", "-"]


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, ["new"]) == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="the page lacks the lines"):
        replaced("nothing", ["new"])
