"""What a step costs outside ONNX Runtime: Python, numpy, sampling, text.

    python bench/overhead.py BUNDLE [--steps N] [--json FILE]

Tells, for greedy and sampled decoding with and without a drafter, the median milliseconds of a
step, how much of it ONNX Runtime took, and what is left, by stage.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import onnxruntime as ort

import specrt

PROMPT = "List the numbers from one to two hundred in words, separated by commas."
SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature 0.8": {"temperature": 0.8},
    "0.8, top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "0.8, top-k 50": {"temperature": 0.8, "top_k": 50},
}
STAGES = ("step", "ORT", "outside", "bind", "verify", "text")


class Clock:
    """Seconds spent in ONNX Runtime since the last reading."""

    def __init__(self) -> None:
        self.seconds = 0.0
        run = ort.InferenceSession.run_with_iobinding

        def timed(session: Any, *arguments: Any) -> None:
            began = perf_counter()
            run(session, *arguments)
            self.seconds += perf_counter() - began

        ort.InferenceSession.run_with_iobinding = timed

    def read(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def measure(
    model: specrt.Model, clock: Clock, drafter: str, options: dict[str, float], steps: int
) -> list[float]:
    """Median milliseconds of a step, as STAGES: whole, in ONNX Runtime, outside; of that draft +
    target, verify, and text and the rest."""
    stream = model.stream(PROMPT, drafter=drafter, max_tokens=steps, seed=1, **options)  # type: ignore[arg-type]
    next(stream)
    rows, began = [], perf_counter()
    clock.read()
    seen = len(stream.result.trace.steps)
    for _ in stream:
        ended, inside = perf_counter(), clock.read()
        taken = stream.result.trace.steps[seen:]
        seen += len(taken)
        if len(taken) == 1:  # a piece may stand for several steps
            draft, target, verify = taken[0].seconds
            whole = ended - began
            rest = whole - draft - target - verify
            rows.append((whole, inside, whole - inside, draft + target - inside, verify, rest))
        began = perf_counter()
        clock.read()
    return [1000 * median(column) for column in zip(*rows, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--steps", type=int, default=96, help="tokens each (96)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    clock = Clock()
    model = specrt.load(options.bundle, drafter="none")
    vocab = model.manifest.model.vocab
    print(f"vocabulary {vocab}, milliseconds a step (medians)")
    print(f"{'':26}" + "".join(f"{stage:>8}" for stage in STAGES))
    rows = []
    for name, sampling in SETTINGS.items():
        for drafter in ("none", "ngram"):
            figures = measure(model, clock, drafter, sampling, options.steps)
            print(f"{name:18}{drafter:8}" + "".join(f"{x:8.3f}" for x in figures))
            rows.append(
                {
                    "sampling": name,
                    "drafter": drafter,
                    "ms": dict(zip(STAGES, figures, strict=True)),
                }
            )
    if options.json:
        line = json.dumps({"vocab": vocab, "rows": rows}, allow_nan=False)
        options.json.write_text(line + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
