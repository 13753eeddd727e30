"""Is the drafter auto as fast as plain decoding and as the best fixed setting, chosen in hindsight?

    python bench/hindsight.py BUNDLE TEXTS.jsonl [--tokens N] [--best N] [--rounds N] [--json FILE]

TEXTS are what bench/replay.py recorded of the bundle. Replayed on the device as it is measured
now, they tell which fixed settings are the best of each kind of work. Those are then run for real,
prompt by prompt, in turns with plain decoding and auto. Before each prompt the device is measured
briefly.

Seconds are those of a run's steps: a draft model's reading of the prompt counts, the target's does
not. Where others use the machine too, neighbouring runs differ by how much these take. So what each
step did is also priced, in steps of one row, by the median of what was measured before the prompts
of its kind of work: the curve v(rows), and what a draft model takes to draft and to read. Not by
that of all, since a machine's memory may be fast for minutes and then slow. Intervals are of 95 %,
by bootstrap over prompts.

The simulator is told that median, and gets a copy of the controller as it was when the run began,
with all that it had learned. How far it is off is told of the steps, priced alike, and of the
seconds, as many as a row took in the run: the latter has in it how far the run's draft model was
from what was measured. Where the bundle no longer writes what was recorded, the text is recorded
anew: kernels that round otherwise write another text.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import specrt
from specrt.bench.environment import environment
from specrt.bench.replay import Recorded, device_of, load_texts, offered
from specrt.bench.simulator import Device, run, settings, speed
from specrt.bench.suite import KINDS, load_suites
from specrt.runtime.controller import Controller
from specrt.runtime.drafters.first import parts
from specrt.runtime.interfaces import Context
from specrt.runtime.trace import Step

PLAIN, AUTO = "plain", "auto"
OTHER = Context((0,))  # a text for draft models between runs, so that none still holds the prompt
DRAWS = 2000  # of the bootstrap
LEAST = (0.97, 0.95)  # of auto over plain decoding, and over the best fixed setting


@dataclass(frozen=True, slots=True)
class Run:
    """A real run. priced: steps of one row that its steps are worth. spent: as many as took its
    seconds. predicted: what the simulator says of the latter. steps, simulated: how many of each
    source and number of drafted tokens, in the run and by the simulator."""

    prompt: str
    kind: str
    setting: str
    tokens: int
    seconds: float
    priced: float
    spent: float
    predicted: float
    drafting: float = 0.0  # seconds of finding drafts
    steps: Mapping[str, int] = field(default_factory=dict)
    simulated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Raw:
    """The same before all curves are known. controller: as it was when the run began."""

    text: Recorded
    setting: str
    steps: Sequence[Step]
    controller: Controller
    device: Device


def candidates(texts: Sequence[Recorded], device: Device, most: int) -> dict[str, tuple[str, ...]]:
    """Kind of work -> the fixed settings that are its best by replay."""
    compared = settings(tuple(texts[0].text.offers), device, [])
    found: dict[str, tuple[str, ...]] = {}
    for kind in dict.fromkeys(one.kind for one in texts):
        paces = {}
        for label, (drafters, controller) in compared.items():
            steps = [
                step
                for one in texts
                if one.kind == kind
                for step in run(one.text, device, controller(one.text.ids), drafters)
            ]
            paces[label] = speed(steps)
        ranked = sorted(paces, key=lambda label: -paces[label])
        found[kind] = tuple(label for label in ranked if label != PLAIN)[:most]
    return found


def measure(
    model: specrt.Model, texts: Sequence[Recorded], tokens: int, best: int, rounds: int
) -> Iterator[_Raw]:
    """All real runs, kinds in the order of the texts."""
    prompts = {prompt.id: prompt for prompt in load_suites(KINDS)}
    chosen = candidates(texts, _device(model), best)
    for index, one in enumerate(texts):
        labels, device = (PLAIN, AUTO, *chosen[one.kind]), _device(model)
        ids = model.prompt_ids(messages=prompts[one.id].messages)
        for turn in range(rounds):
            first = (index + turn) % len(labels)
            for label in labels[first:] + labels[:first]:
                how = _how(label)
                for part in parts(model._drafter(how["drafter"])):
                    part.propose(OTHER, 1, np.random.default_rng(0))
                controller = model._controller(how["drafter"], how.get("budget"), None, ids)
                controller = deepcopy(controller)
                result = model.generate(ids, max_tokens=tokens, temperature=0, **how)
                if result.tokens != tuple(one.text.written):
                    one = replace(one, text=offered(model, ids, tokens))
                yield _Raw(one, label, result.trace.steps, controller, device)


def usual_devices(raws: Sequence[_Raw]) -> dict[str, Device]:
    """By kind of work: the median of what was measured, in steps of one row."""
    kinds = dict.fromkeys(raw.text.kind for raw in raws)
    return {kind: _usual([raw for raw in raws if raw.text.kind == kind]) for kind in kinds}


def _usual(raws: Sequence[_Raw]) -> Device:
    curve = np.median([raw.device.curve for raw in raws], axis=0).tolist()
    drafts = {
        name: tuple(
            np.median(
                [np.array(raw.device.drafts[name]) / raw.device.plain for raw in raws], axis=0
            )
        )
        for name in raws[0].device.drafts
    }
    return Device(1.0, curve, drafts)


def priced(raws: Sequence[_Raw], devices: Mapping[str, Device]) -> list[Run]:
    """The runs with their steps priced by the usual device of their kind."""
    runs = []
    for raw in raws:
        usual = devices[raw.text.kind]
        target = sum(usual.step(step.drafted + 1) for step in raw.steps)
        one = sum(step.seconds[1] + step.seconds[2] for step in raw.steps) / target
        seconds, tokens = (
            sum(sum(step.seconds) for step in raw.steps),
            sum(len(step.emitted) for step in raw.steps),
        )
        simulated = _simulated(raw, usual, one)
        runs.append(
            Run(
                prompt=raw.text.id,
                kind=raw.text.kind,
                setting=raw.setting,
                tokens=tokens,
                seconds=seconds,
                priced=target + _drafting(raw, usual),
                spent=seconds / one,
                predicted=tokens / (speed(simulated) * one),
                drafting=sum(step.seconds[0] for step in raw.steps),
                steps=_counted(raw.steps),
                simulated=_counted(simulated),
            )
        )
    return runs


def _simulated(raw: _Raw, usual: Device, one: float) -> list[Step]:
    """The run's text on the usual device, at so many seconds of one row."""
    drafts = {name: (token * one, read * one) for name, (token, read) in usual.drafts.items()}
    named = raw.setting.partition(" ")[0].split("+")
    names = tuple(raw.text.text.offers) if raw.setting in (PLAIN, AUTO) else named
    return run(raw.text.text, Device(one, usual.curve, drafts), raw.controller, names)


def _counted(steps: Sequence[Step]) -> dict[str, int]:
    counts = Counter((step.source or PLAIN, step.drafted) for step in steps)
    return {f"{source} {drafted}": n for (source, drafted), n in sorted(counts.items())}


def _drafting(raw: _Raw, usual: Device) -> float:
    """What a draft model took, in steps of one row: its tokens, and what it had to read before."""
    total, place, read = 0.0, raw.text.text.prompt, 0
    for step in raw.steps:
        if step.source in usual.drafts:
            token, reading = usual.drafts[step.source]
            total += step.drafted * token + (max(place - read, 1) - 1) * reading
            read = place + min(step.accepted, step.drafted - 1)
        place += len(step.emitted)
    return total


def ratio(
    runs: Sequence[Run], setting: str, other: str, time: Callable[[Run], float]
) -> tuple[float, float, float]:
    """Speed of a setting over another one's on the same prompts, with the ends of its interval."""
    prompts = sorted({one.prompt for one in runs})
    sums = np.zeros((2, 2, len(prompts)))  # setting, tokens or time, prompt
    for one in runs:
        if one.setting in (setting, other):
            sums[int(one.setting == other), :, prompts.index(one.prompt)] += one.tokens, time(one)
    draws = np.random.default_rng(0).integers(0, len(prompts), (DRAWS, len(prompts)))
    drawn = np.concatenate([sums.sum(axis=2)[:, :, None], sums[:, :, draws].sum(axis=3)], axis=2)
    ratios = (drawn[0, 0] / drawn[0, 1]) / (drawn[1, 0] / drawn[1, 1])
    low, high = np.percentile(ratios[1:], [2.5, 97.5])
    return float(ratios[0]), float(low), float(high)


def report(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each kind of work and setting, and whether auto holds what it promises."""
    header = f"{'work':11}{'setting':18}{'wall x plain':>22}{'priced x plain':>24}"
    yield f"{header}{'predicted x plain':>20}{'off':>6}{'in seconds':>12}"
    for kind in dict.fromkeys(one.kind for one in runs):
        those = [one for one in runs if one.kind == kind]
        labels = list(dict.fromkeys(one.setting for one in those))
        fixed = [label for label in labels if label not in (PLAIN, AUTO)]
        for label in (AUTO, *fixed):
            wall, steps = (_shown(ratio(those, label, PLAIN, t)) for t in (_wall, _priced))
            said = ratio(those, label, PLAIN, _predicted)[0]
            line = f"{kind:11}{label:18}{wall:>22}{steps:>24}"
            offs = (off(those, label, time) for time in (_priced, _spent))
            yield f"{line}{said:20.2f}{next(offs):6.2f}{next(offs):12.2f}"
        best = max(fixed, key=lambda x: ratio(those, x, PLAIN, _priced)[0])
        plain, hindsight = (ratio(those, AUTO, x, _priced) for x in (PLAIN, best))
        holds = plain[0] >= LEAST[0] and hindsight[0] >= LEAST[1]
        yield f"{kind:11}auto is {_shown(plain)} of plain, {_shown(hindsight)} of {best}" + (
            "" if holds else ": too slow"
        )


def _wall(one: Run) -> float:
    return one.seconds


def _priced(one: Run) -> float:
    return one.priced


def _predicted(one: Run) -> float:
    return one.predicted


def _spent(one: Run) -> float:
    return one.spent


def off(runs: Sequence[Run], label: str, time: Callable[[Run], float]) -> float:
    """Predicted over real tokens a second of all runs of a setting."""
    those = [one for one in runs if one.setting == label]
    return sum(time(one) for one in those) / sum(one.predicted for one in those)


def _shown(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.2f} ({found[1]:.2f}..{found[2]:.2f})"


def _how(label: str) -> dict[str, Any]:
    """A setting as options of a request."""
    drafter, _, budget = label.partition(" ")
    return {
        "drafter": "none" if label == PLAIN else drafter,
        **({"budget": int(budget)} if budget else {}),
    }


def _device(model: specrt.Model) -> Device:
    """As it is now."""
    return device_of(model._measure(), 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("bundle", type=Path)
    add("texts", type=Path)
    add("--tokens", type=int, default=128)
    add("--limit", type=int, default=5, help="texts of each kind (5)")
    add("--best", type=int, default=2, help="fixed settings to run of each kind (2)")
    add("--rounds", type=int, default=1, help="of each prompt (1)")
    add("--json", type=Path, metavar="FILE", help="keep all runs")
    options = parser.parse_args()
    texts, of_kind = [], dict[str, int]()
    for one in load_texts(options.texts):
        of_kind[one.kind] = of_kind.get(one.kind, 0) + 1
        if of_kind[one.kind] <= options.limit:
            texts.append(replace(one, text=one.text.first(options.tokens)))
    model, raws = specrt.load(options.bundle), list[_Raw]()
    with suppress(KeyboardInterrupt):  # what was run is told
        for raw in measure(model, texts, options.tokens, options.best, options.rounds):
            raws.append(raw)
            print(f"\r{len(raws)} runs", end="", file=sys.stderr)
    devices = usual_devices(raws)
    runs = priced(raws, devices)
    lines = list(report(runs))
    print("\n".join(["", *lines]))
    if options.json:
        document = {
            "environment": environment(),
            "argv": sys.argv,
            "devices": {kind: asdict(device) for kind, device in devices.items()},
            "runs": [asdict(one) for one in runs],
        }
        options.json.write_text(json.dumps(document))
    return int(any(line.endswith("too slow") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
