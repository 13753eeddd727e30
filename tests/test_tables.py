"""README's tables: what stands in them is what the documents say."""

from collections.abc import Mapping
from typing import Any

import pytest

from specrt.bench.readme import BEGIN, END, PEER, lines, replaced

ENVIRONMENT = {"cpu": "CPU", "threads": 2, "platform": "P", "python": "3", "onnxruntime": "1"}


def figures(speed: float, same: int = 2, runs: int = 2) -> dict[str, Any]:
    of = {"tokens_per_s": speed, "ttft_s": 0.1, "speedup": speed / 10, "answer_speedup": speed / 20}
    medians = {name: {"median": value} for name, value in of.items()}
    return {**medians, "same_text": same, "other_text": runs - same, "runs": runs}


def document(drafters: Mapping[str, dict[str, Any]], **peers: dict[str, Any]) -> dict[str, Any]:
    """Of two questions. peers: figures by name; of each, the second question failed."""
    summary = {name: {"all": of} for name, of in {**drafters, **peers}.items()}
    own = [{"drafter": name, "error": None} for name in drafters for _ in range(2)]
    seen = {"load_s": 1.0, "peak_rss_mb": 200.0}
    theirs = [{"drafter": name, "error": error, **seen} for name in peers for error in (None, "x")]
    return {
        "date": "2026-11-30T00:00:00+00:00",
        "environment": ENVIRONMENT,
        "options": {"drafters": [*drafters], "prompts": ["a", "b"], "max_tokens": 64},
        "load_s": 0.5,
        "peak_rss_mb": 100.0,
        "records": own + theirs,
        "summary": summary,
    }


PLAIN = {"none": figures(10)}
OURS = document({**PLAIN, "ngram": figures(20), "auto": figures(30, same=1)})
EXPORT = {
    "drafts": ["draft.gguf"],
    "weights": "carried",
    "default_weights": True,
    "kl": 0.00123,
    "agreement": 0.976,
    "seconds": 151.6,
    "peak_rss_mb": 2140.0,
}


def told(**results: dict[str, Any]) -> list[str]:
    """The page's lines. results: documents, whose names have `_` in place of `-`."""
    named = {name.replace("_", "-"): made for name, made in results.items()}
    return [*lines({"smollm2": OURS, **named})]


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
    assert row(page, "milliseconds a step") == ["milliseconds a step", "greedy", "0.8"]
    assert row(page, "plain | 0.25") == ["plain", "0.25", "0.50"]
    assert row(page, "`ngram` | 0.30") == ["`ngram`", "0.30", "0.70"]


def row(page: list[str], start: str) -> list[str]:
    """The cells of the one row that begins so."""
    (found,) = (line for line in page if line.startswith(f"| {start}"))
    return found.strip("| ").split(" | ")


def test_an_exports_row_is_its_document() -> None:
    page = told(export_coder=EXPORT)
    assert row(page, "Qwen2.5-Coder-1.5B from its Q4_K_M, with its draft") == [
        "Qwen2.5-Coder-1.5B from its Q4_K_M, with its draft",
        *("carried (default)", "0.0012", "98 %", "152 s", "2.1 GB"),
    ]


def test_an_export_without_checks_has_no_quality() -> None:
    bare = {**EXPORT, "kl": None, "agreement": None, "default_weights": False, "drafts": []}
    cells = row(told(export_coder_int4={**bare, "weights": "int4"}), "Qwen2.5-Coder")
    assert cells[1:4] == ["int4", "-", "-"]


def test_same_texts_are_of_all_runs_with_drafts() -> None:
    assert row(told(same_coder_int8=OURS), "Qwen2.5-Coder")[1] == "3 of 4"


def test_ratios_are_of_the_run_that_holds_no_draft() -> None:
    beside = document(PLAIN, **{PEER: figures(5)})
    cells = row(told(same_coder_int8=OURS, genai_coder_int8=beside), "Qwen2.5-Coder")
    assert cells[0] == "Qwen2.5-Coder-1.5B from its Q4_K_M, int8"
    assert cells[1:] == ["3 of 4", "2.00", "1.00", "0.50", "0.50"]


def test_without_the_peer_its_ratios_are_left_open() -> None:
    assert row(told(same_coder_int8=OURS), "Qwen2.5-Coder")[2:] == ["-"] * 4


def test_an_engine_is_told_with_how_many_questions_it_answered() -> None:
    beside = document({**PLAIN, "auto": figures(30)}, slow=figures(5))
    beside["options"]["peer_seconds"] = 240
    page = told(peers_smollm2=beside)
    assert row(page, "slow")[1:] == ["5", "0.50", "0.25", "1 of 2", "1.00", "200"]
    assert row(page, "specrt plain")[4] == "2 of 2"
    assert "each mode having 240 s for all" in " ".join(page)


def test_what_was_not_measured_has_no_table() -> None:
    assert sum(line.startswith("|---") for line in told()) == 1


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, ["new"]) == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="the page lacks the lines"):
        replaced("nothing", ["new"])
