"""README.md's tables say what the documents of a benchmark say."""

import pytest

from specrt.bench import readme
from specrt.bench.report import summarise


def record(drafter: str, prompt: str, speed: float, **more: object) -> dict[str, object]:
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


def document(*records: dict[str, object], drafters: tuple[str, ...]) -> dict[str, object]:
    about = {"cpu": "A chip", "threads": 2, "platform": "an OS", "python": "3.11"}
    return {
        "date": "2026-11-30T10:00:00+00:00",
        "environment": {**about, "onnxruntime": "1.32.0"},
        "options": {"drafters": [*drafters], "prompts": ["a", "b"], "max_tokens": 10},
        **{"load_s": 0.2, "peak_rss_mb": 200.0, "records": [*records]},
        "summary": summarise(records),
    }


NAMES = ("none", "auto")
OWN = [
    record("none", "a", 10.0, identical=True),
    record("none", "b", 20.0, identical=True),
    record("auto", "a", 30.0, identical=True),
    record("auto", "b", 30.0, identical=False),
]
PEER = record("onnxruntime-genai", "a", 5.0, load_s=0.8, peak_rss_mb=400.0, ttft_s=1.0)


def cells(lines: list[str], start: str) -> list[str]:
    line = next(line for line in lines if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_speeds_and_speed_ups_are_those_of_the_summary() -> None:
    lines = [*readme.lines({"smollm2": document(*OWN, drafters=NAMES)})]
    assert cells(lines, "plain") == ["15", "15", ""]
    assert cells(lines, "`auto`") == ["30", "30", "1 of 2"]
    assert cells(lines, "speed-up, `auto`") == ["**2.25**", "2.25", ""]  # of 3 and 1.5
    assert cells(lines, "of whole answers, `auto`") == ["**1.47**", "1.47", ""]  # of 1.75, 1.1875
    text = " ".join(lines)
    assert all(part in text for part in ("A chip, 2 threads", "ONNX Runtime 1.32.0; 2026-11-30"))
    assert "Other engines" not in text


def test_a_peer_stands_beside_every_drafter() -> None:
    own, beside = document(*OWN, drafters=NAMES), document(*OWN, PEER, drafters=NAMES)
    lines = [*readme.lines({"coder": own, "peers-coder": beside})]
    assert cells(lines, "specrt plain") == ["15", "1.00", "1.00", "2 of 2", "0.20", "200"]
    assert cells(lines, "onnxruntime-genai")[0] == "5"
    assert cells(lines, "onnxruntime-genai")[3:] == ["1 of 2", "0.80", "400"]


def test_a_run_beside_a_peer_of_the_same_width_gives_ratios() -> None:
    own = document(*OWN, drafters=NAMES)
    beside = document(OWN[0], PEER, drafters=("none",))
    lines = [*readme.lines({"coder": own, "genai-coder-int8": beside})]
    assert cells(lines, f"{readme.MODELS['coder']}, int8") == ["-", "2.00", "0.50", "0.25", "0.50"]


def test_what_stands_between_the_marks_is_replaced_and_nothing_else() -> None:
    page = f"a\n{readme.BEGIN}\nold\n{readme.END}\nb\n"
    assert readme.replaced(page, ["new"]) == f"a\n{readme.BEGIN}\nnew\n{readme.END}\nb\n"
    with pytest.raises(SystemExit, match="the page lacks"):
        readme.replaced("no marks", ["new"])
