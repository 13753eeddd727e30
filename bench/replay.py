"""Policies over recorded texts, without a model.

    python bench/replay.py record BUNDLE TEXTS.jsonl [--suite KIND]... [--tokens N] [--limit N]
    python bench/replay.py run TEXTS.jsonl PROFILE.json [--policies P,...] [--noise X]

What a drafter would propose at a place of a text, and how much of it is right, does not depend on
what was drafted before, since drafts change no text. So `record` writes each text once, plainly
and greedily, asks every drafter at every place, and keeps how many tokens were right. `run` has
the real controllers choose over that, on a device described by a profile of `specrt tune`, and
compares their tokens a second with plain decoding and with every fixed budget.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np

import specrt
from specrt.bench.simulator import Device, Offer, Text, run, settings, speed
from specrt.bench.suite import KINDS, load_suites
from specrt.runtime.acceptance import MOST
from specrt.runtime.confidence import DEEPEST
from specrt.runtime.controller import Controller
from specrt.runtime.drafters.first import First, is_free, parts, stops, unread
from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.policies import POLICIES
from specrt.runtime.profile import US, Profile
from specrt.runtime.proposal import Proposal
from specrt.runtime.records import parse_json, read_record
from specrt.runtime.trace import Step


@dataclass(frozen=True, slots=True)
class Recorded:
    """A text of a suite."""

    id: str
    kind: str
    text: Text

    def to_json(self) -> str:
        offers = {
            name: [offer and [*offer[:3], _rounded(offer.sure)] for offer in each]
            for name, each in self.text.offers.items()
        }
        text = self.text
        record = {"id": self.id, "kind": self.kind, "prompt": text.prompt, "ids": [*text.ids]}
        return json.dumps(
            {
                **record,
                "most": text.most,
                "written": [*text.written],
                "sure": _rounded(text.sure),
                "offers": offers,
            }
        )


def _rounded(sure: Sequence[float]) -> list[float]:
    return [round(one, 3) for one in sure]


def offers_of(
    drafter: Drafter, prompt: Sequence[int], written: Sequence[int]
) -> list[Offer | None]:
    """What a drafter would offer at each place of a text, given what then was written."""
    most, rng = MOST if is_free(drafter) else DEEPEST, np.random.default_rng(0)
    tokens, offers = list(prompt), list[Offer | None]()
    for place, token in enumerate(written):
        sure: list[float] = []
        context = Context(tokens, go_on=lambda x, sure=sure: sure.append(x) is None)  # type: ignore[misc]
        proposal = drafter.propose(context, most, rng)
        truth = written[place : place + proposal.size]
        right = 0
        while right < len(truth) and proposal.tokens[right] == truth[right]:
            right += 1
        kind = proposal.kind or proposal.source
        offers.append(Offer(right, proposal.size, kind, tuple(sure)) if proposal.size else None)
        tokens.append(token)
    return offers


def record(
    model: specrt.Model, suites: Sequence[str], tokens: int, limit: int
) -> Iterator[Recorded]:
    """The texts of the first `limit` prompts of each suite, each up to so many tokens."""
    for suite in suites:
        for prompt in load_suites([suite])[:limit]:
            ids = model.prompt_ids(messages=prompt.messages)
            yield Recorded(prompt.id, prompt.kind, offered(model, ids, tokens))


def offered(model: specrt.Model, prompt: Sequence[int], most: int) -> Text:
    """A text of so many tokens at most, written plainly and greedily, with what each of the model's
    drafters would have offered in it."""
    plain = model.generate(prompt, drafter="none", max_tokens=most, temperature=0)
    written, steps = plain.tokens, plain.trace.steps
    drafters = zip(model._parts("auto"), parts(model._drafter("auto")), strict=True)
    offers = {name: offers_of(part, prompt, written) for name, part in drafters}
    sure = tuple(step.certainty for step in steps[: len(written)])  # without a stop token's
    return Text(offers, len(prompt), tuple(prompt), most, written, sure)


def load_texts(path: Path) -> list[Recorded]:
    """What `record` wrote."""
    texts = []
    for line in path.read_text().splitlines():
        given: Any = json.loads(line)
        offers = {
            name: [each and _offer(*each) for each in places]
            for name, places in given["offers"].items()
        }
        ids, written, sure = (tuple(given.get(key, ())) for key in ("ids", "written", "sure"))
        text = Text(offers, given["prompt"], ids, given.get("most", 0), written, sure)
        texts.append(Recorded(given["id"], given["kind"], text))
    if not texts:
        raise RequestError(f"{path} holds no text; record some")
    return texts


def _offer(right: int, size: int, kind: str, sure: Sequence[float] = ()) -> Offer:
    return Offer(right, size, kind, tuple(sure))


def device_of(profile: Profile, noise: float) -> Device:
    """The device that a profile describes."""
    steps = [us + profile.overhead_us for us in profile.curve.us]
    return Device(
        plain=steps[0] * US,
        curve=[us / steps[0] for us in steps],
        drafts={d.name: (d.token_us * US, d.read_us * US) for d in profile.drafts},
        noise=noise,
    )


def compare(
    texts: Sequence[Recorded], device: Device, policies: Sequence[str], *, profiled: bool = True
) -> dict[str, dict[str, float]]:
    """Kind of work -> policy or fixed setting -> tokens a second, plain decoding under "plain"."""
    names = tuple(texts[0].text.offers)
    found: dict[str, dict[str, float]] = {}
    compared = settings(names, device, policies, profiled=profiled)
    for label, (drafters, controller) in compared.items():
        steps: dict[str, list[Any]] = {}
        for seed, one in enumerate(texts):
            steps.setdefault(one.kind, []).extend(
                run(one.text, device, controller(one.text.ids), drafters, seed)
            )
        for kind, those in steps.items():
            found.setdefault(kind, {})[label] = speed(those)
    return found


class _Aside:
    """A drafter whose processor's seconds are kept aside; what its questions to the controller
    take, whether to go on, is not among them."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.seconds = inner, 0.0
        self.free, self.stops = is_free(inner), stops(inner)

    def unread(self, tokens: Sequence[int]) -> int:
        return unread(self.inner, tokens)

    def propose(self, context: Context, budget: int, rng: "np.random.Generator") -> Proposal:
        began, ask, asking = thread_time(), context.go_on, 0.0

        def go_on(certainty: float) -> bool:
            nonlocal asking
            asked = perf_counter()
            answer = ask is None or ask(certainty)
            asking += perf_counter() - asked
            return answer

        proposal = self.inner.propose(
            context if ask is None else replace(context, go_on=go_on), budget, rng
        )
        self.seconds += thread_time() - began - asking
        return proposal


class Timed:
    """A controller, and the processor's seconds of each of its choices, without those of the
    drafters, and of the lessons from them."""

    def __init__(self, inner: Controller) -> None:
        self.inner, self.seconds, self.lessons = inner, list[float](), list[float]()
        self._drafters: list[_Aside] = []

    @property
    def reason(self) -> str:
        return self.inner.reason

    def draft(
        self, drafter: Drafter, context: Context, room: int, rng: np.random.Generator
    ) -> Proposal:
        self._drafters = self._drafters or [_Aside(part) for part in parts(drafter)]
        before, asides = sum(one.seconds for one in self._drafters), First(self._drafters)
        began = thread_time()
        proposal = self.inner.draft(asides, context, room, rng)
        taken = thread_time() - began
        self.seconds.append(taken + before - sum(one.seconds for one in self._drafters))
        return proposal

    def observe(self, step: Step) -> None:
        began = thread_time()
        self.inner.observe(step)
        self.lessons.append(thread_time() - began)


def choices(texts: Sequence[Recorded], device: Device, policy: str) -> list[np.ndarray]:
    """Text by text, (steps, 2): seconds of each choice of a policy, and with its lesson."""
    names, seconds = tuple(texts[0].text.offers), list[np.ndarray]()
    drafters, controller = settings(names, device, [policy], profiled=True)[policy]
    for one in texts:
        timed = Timed(controller(one.text.ids))
        run(one.text, device, timed, drafters)
        seconds.append(np.cumsum([timed.seconds, timed.lessons], axis=0).T)
    return seconds


def table(found: dict[str, dict[str, float]], policies: Sequence[str]) -> str:
    """Speed-ups over plain decoding, a line for each kind of work."""
    lines = [f"{'work':12}{'best fixed':>22}" + "".join(f"{name:>11}" for name in policies)]
    for kind, speeds in found.items():
        plain = speeds["plain"]
        fixed = {label: s for label, s in speeds.items() if label not in policies}
        best = max(fixed, key=lambda label: fixed[label])
        cells = "".join(f"{speeds[name] / plain:11.2f}" for name in policies)
        lines.append(f"{kind:12}{best:>16}{fixed[best] / plain:6.2f}{cells}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    add = commands.add_parser("record").add_argument
    add("bundle", type=Path)
    add("texts", type=Path)
    add("--suite", action="append", help="a kind of work or a .jsonl file (all kinds)")
    add("--tokens", type=int, default=128)
    add("--limit", type=int, default=4, help="prompts of each suite (4)")
    add = commands.add_parser("run").add_argument
    add("texts", type=Path)
    add("profile", type=Path)
    add("--policies", default=",".join(POLICIES))
    add("--noise", type=float, default=0.05, help="spread of log seconds (0.05)")
    add("--unprofiled", action="store_true", help="policies have to learn the costs")
    options = parser.parse_args()
    if options.command == "record":
        model = specrt.load(options.bundle)
        with options.texts.open("w") as out:
            for one in record(model, options.suite or KINDS, options.tokens, options.limit):
                out.write(one.to_json() + "\n")
                out.flush()
        return 0
    profile = read_record(Profile, parse_json(options.profile.read_bytes()), "profile")
    policies = options.policies.split(",")
    device, texts = device_of(profile, options.noise), load_texts(options.texts)
    found = compare(texts, device, policies, profiled=not options.unprofiled)
    print(table(found, policies))
    taken = choices(texts, device, policies[0])
    first = np.median([those[0] for those in taken], axis=0) / US
    later = np.percentile(np.concatenate([those[1:] for those in taken]), [50, 99], axis=0) / US
    for place, what in enumerate((f"a choice by {policies[0]}", "with the lesson from its step")):
        middle, late = later[:, place]
        print(
            f"{what}: {middle:.0f} us, of a hundred the slowest {late:.0f} us; "
            f"a text's first {first[place]:.0f} us"
        )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
