"""When a draft model, a head or lookup pays on devices that are not at hand: a table by simulation.

    python bench/planning.py [--target B] [--draft B] [--prompt N] [--tokens N]

A step of k rows takes sqrt(memory² + compute²) and a little for each layer: the weights are read
once, in bytes over the bandwidth that is reached, and k rows are computed, in operations over the
rate that is reached. Bandwidths and rates are from public data sheets, see docs/planning.md.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from specrt.bench.simulator import (
    Device,
    Text,
    draft_text,
    joined,
    lookup_text,
    memory,
    run,
    speed,
)
from specrt.runtime.adaptive import Adaptive
from specrt.runtime.controller import Fixed
from specrt.runtime.costs import MOST_ROWS

BYTES = 0.65  # a weight, as in Q4_K_M
REACHED_BANDWIDTH, REACHED_RATE = 0.7, 0.6  # shares of the data sheet's
LAYER_CPU, LAYER_GPU = 15e-6, 60e-6  # seconds of a layer besides: threads that meet, kernels begun
LAYERS = 28  # of the target, and nearly so of its draft: such pairs differ in width
HEAD = 0.1  # of the target's weights, in one layer: EAGLE's, with the target's last matrix
TEXTS = 4  # of each kind of work


@dataclass(frozen=True, slots=True)
class Machine:
    """bandwidth: bytes a second; rate: 8-bit operations a second, dense; both of the data sheet."""

    name: str
    bandwidth: float
    rate: float
    gpu: bool = False

    def seconds(self, weights: float, rows: int, layers: int) -> float:
        """Of a forward pass."""
        reads = weights * BYTES / (REACHED_BANDWIDTH * self.bandwidth)
        computes = 2 * weights * rows / (REACHED_RATE * self.rate)
        return sqrt(reads**2 + computes**2) + layers * (LAYER_GPU if self.gpu else LAYER_CPU)


@dataclass(frozen=True, slots=True)
class Work:
    """How often tokens of a draft model, of a head and of an n-gram are right, and at what share of
    the places an n-gram is found: such that two Zen 4 cores gain with lookup and with a draft what
    recorded texts of a 1.5B and its 0.5B gain there. The head's are guesses."""

    name: str
    draft: float
    head: float
    ngram: float
    found: float


G, T = 1e9, 1e12
MACHINES = (
    Machine("Raspberry Pi 5", 17 * G, 0.6 * T),
    Machine("Intel N100", 38 * G, 0.75 * T),
    Machine("two server cores, Zen 4", 60 * G, 1.6 * T),
    Machine("laptop, 8 cores Zen 4", 90 * G, 4.1 * T),
    Machine("laptop, 12 cores Zen 5", 120 * G, 5.4 * T),
    Machine("Apple M2, CPU", 100 * G, 1.8 * T),
    Machine("Jetson Orin Nano 8 GB", 68 * G, 20 * T, gpu=True),
    Machine("Jetson AGX Orin", 205 * G, 85 * T, gpu=True),
)
WORKS = (
    Work("chat", draft=0.74, head=0.62, ngram=0.42, found=0.23),
    Work("code", draft=0.90, head=0.72, ngram=0.46, found=0.25),
    Work("edit", draft=0.90, head=0.75, ngram=0.78, found=0.55),
)
DRAFTERS = {"lookup": ("ngram",), "draft": ("ngram", "draft"), "head": ("ngram", "head")}


def device(machine: Machine, target: float, draft: float) -> Device:
    """What a machine costs with models of so many weights. Reading is as in blocks of 64."""
    steps = [machine.seconds(target, rows, LAYERS) for rows in range(1, MOST_ROWS + 1)]
    models = {"draft": (draft, LAYERS), "head": (HEAD * target, 1)}
    costs = {
        name: (machine.seconds(weights, 1, layers), machine.seconds(weights, 64, layers) / 64)
        for name, (weights, layers) in models.items()
    }
    return Device(steps[0], [seconds / steps[0] for seconds in steps], costs)


def texts(work: Work, names: tuple[str, ...], prompt: int, tokens: int) -> Iterator[Text]:
    """For drafters of these names, the same for every machine."""
    for seed in range(TEXTS):
        rng = np.random.default_rng(seed)
        parts = [lookup_text([work.ngram] * tokens, rng, work.found)]
        for name in names[1:]:
            parts.append(draft_text([getattr(work, name)] * tokens, rng, name))
        yield Text(joined(*parts).offers, prompt)


def gain(costs: Device, work: Work, names: tuple[str, ...], prompt: int, tokens: int) -> float:
    """Speed of the drafter auto, where it may choose among these, over plain decoding."""
    held, fast, plain = memory(costs, profiled=True), [], []
    for seed, text in enumerate(texts(work, names, prompt, tokens)):
        fast += run(text, costs, Adaptive(names, held), names, seed)
        plain += run(text, costs, Fixed(0), names, seed)
    return speed(fast) / speed(plain)


def table(target: float, draft: float, prompt: int, tokens: int) -> Iterator[str]:
    """The table in Markdown, line by line."""
    kinds = [f"{work.name} {name}" for work in WORKS for name in DRAFTERS]
    yield "| " + " | ".join(["device", "plain tok/s", "v(4)", "v(8)", *kinds]) + " |"
    yield "|" + "---|" * (4 + len(kinds))
    for machine in MACHINES:
        costs = device(machine, target, draft)
        gains = (
            gain(costs, work, names, prompt, tokens)
            for work in WORKS
            for names in DRAFTERS.values()
        )
        figures = (1 / costs.plain, costs.step(4) / costs.plain, costs.step(8) / costs.plain)
        cells = [f"{figures[0]:.0f}", *(f"{v:.2f}" for v in (*figures[1:], *gains))]
        yield "| " + " | ".join([machine.name, *cells]) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--target", type=float, default=1.54, help="weights in billions (1.54)")
    add("--draft", type=float, default=0.49, help="of the draft model (0.49)")
    add("--prompt", type=int, default=100, help="tokens (100)")
    add("--tokens", type=int, default=256, help="of each answer (256)")
    options = parser.parse_args()
    sizes = options.target * 1e9, options.draft * 1e9
    print("\n".join(table(*sizes, options.prompt, options.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
