"""Whether a bundle writes with drafts what its model writes without: claims, each tried and judged.

Texts of the same seed must be the same to the last token, greedy and sampled, with penalties and
with an end inside a block (the coupled rule). The other exact rules write other texts of the same
law, so their tokens are compared with the chances that the model itself gave them: how often the
token was the best, one of the two best, … of its row. That is sharper than to compare two samples,
since each token's law is known. Plain decoding is the control and is judged by the same measure.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import specrt
from specrt.bench.environment import environment
from specrt.bench.law import RANKS, SIGMA, Law
from specrt.bench.suite import Prompt
from specrt.runtime.bundle import MANIFEST, Manifest, sha256
from specrt.runtime.errors import CheckError, RequestError
from specrt.runtime.evenness import unevenness
from specrt.runtime.interfaces import Session
from specrt.runtime.open import open_session

PLAIN = "none"
FORMAT = 1
BUDGET = 4  # tokens drafted in a step
CONTROLS = ("coupled", "membership")  # for plain decoding: drawn by noise, and by a generator
RULES = ("rejection", "block")
GREEDY, SEEDED, PROCESSED = "greedy", "same seed", "processors, an end"

Show = Callable[[int, int], None]  # texts written, of all
Check = Callable[[Session, Sequence[int]], Mapping[str, Any]]  # of a graph; CheckError


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim about one drafter (or "plain", or a graph) and whether it holds. words: what was
    seen, for a person. figures: for a program."""

    subject: str
    claim: str
    holds: bool
    words: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """tokens: of each text. samples: texts of each prompt from which a law is judged."""

    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...]
    tokens: int = 32
    seed: int = 0
    samples: int = 4

    def __post_init__(self) -> None:
        if self.tokens < 8:
            raise RequestError(f"--tokens must be 8 or more, to draft anything, not {self.tokens}")
        if self.seed < 0:
            raise RequestError(f"seed must be 0 or more, not {self.seed}")
        if wrong := {PLAIN, ""} & {*self.drafters}:
            raise RequestError(f"drafter {wrong.pop()!r} drafts nothing; name one that does")

    @property
    def texts(self) -> int:
        """How many are written in all."""
        plain = len(CASES) + self.samples * len(CONTROLS)
        each = len(CASES) + self.samples * len(RULES) + 1
        return len(self.prompts) * (plain + each * len(self.drafters))


def certify(model: specrt.Model, plan: Plan, show: Show = lambda done, of: None) -> list[Finding]:
    """Write every text of the plan and judge each claim."""
    writer = _Writer(model, plan, show)
    plain = {case: writer.all(PLAIN, **options) for case, options in CASES.items()}
    laws = [Law.of(writer.samples(PLAIN, rule)) for rule in CONTROLS]
    findings = [_control(rule, law) for rule, law in zip(CONTROLS, laws, strict=True)]
    for drafter in plan.drafters:
        texts = {case: writer.all(drafter, **options) for case, options in CASES.items()}
        findings += [_identity(writer, drafter, case, plain[case], texts[case]) for case in CASES]
        again = writer.all(drafter, backwards=True, **CASES[SEEDED])
        findings.append(_drafts(drafter, [*texts.values()], texts[SEEDED], again))
        findings += [_law(drafter, rule, writer.samples(drafter, rule), laws[0]) for rule in RULES]
    return findings


def graphs(
    folder: Path, manifest: Manifest, provider: str, tokens: Sequence[int], check: Check
) -> Iterator[Finding]:
    """Whether each graph gives a row the same logits in blocks of any size, after a rollback, and
    in a tree."""
    parts = [("target", manifest.model), *((d.path, d.model) for d in manifest.drafters)]
    for path, model in parts:
        session = open_session(
            folder / path / "model.onnx", model, manifest.flavour, provider=provider
        )
        try:
            found = check(session, tokens[: model.context])
        except CheckError as error:
            yield Finding(path, "graph", False, str(error))
        else:
            words = ", ".join(f"{name} {_rms(each['rms'])}" for name, each in found.items())
            yield Finding(path, "graph", True, words, found)


def document(
    folder: Path, manifest: Manifest, plan: Plan, findings: Sequence[Finding]
) -> dict[str, Any]:
    """The certificate as one JSON object."""
    return {
        "format": FORMAT,
        "holds": all(finding.holds for finding in findings),
        "bundle": {
            "path": str(folder),
            "sha256": sha256(folder / MANIFEST),
            "files": {file.path: file.sha256 for file in manifest.files},
        },
        "uneven": unevenness(manifest) or None,
        "environment": environment(),
        "settings": {
            "drafters": list(plan.drafters),
            "prompts": [prompt.id for prompt in plan.prompts],
            "tokens": plan.tokens,
            "seed": plan.seed,
            "samples": plan.samples,
            "sigma": SIGMA,
        },
        "findings": [asdict(finding) for finding in findings],
    }


# Texts

CASES: Mapping[str, Mapping[str, Any]] = {
    GREEDY: {},
    SEEDED: {"temperature": 0.8, "traced": True},
    PROCESSED: {
        "temperature": 0.8,
        "top_p": 0.95,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "processed": True,
    },
}


class _Writer:
    """Writes the texts of a plan and tells how many there are."""

    def __init__(self, model: specrt.Model, plan: Plan, show: Show) -> None:
        self.model, self._plan, self._show, self._done = model, plan, show, 0
        self.prompts = [model.prompt_ids(prompt.prompt) for prompt in plan.prompts]

    def all(
        self, drafter: str, *, backwards: bool = False, processed: bool = False, **options: Any
    ) -> list[specrt.Result]:
        """A text of each prompt, in their order whatever the order of writing. processed: by a
        custom processor, which ends each at a place of its own."""
        order = list(enumerate(self.prompts))
        texts: dict[int, specrt.Result] = {}
        for i, ids in reversed(order) if backwards else order:
            end = len(ids) + self._plan.tokens // 2 + i % 4
            custom = self._processor(end) if processed else None
            texts[i] = self._write(ids, drafter, seed=self._plan.seed + i, custom=custom, **options)
        return [texts[i] for i, _ in order]

    def samples(self, drafter: str, rule: str) -> list[specrt.Result]:
        """Some texts of each prompt, with the chances of their tokens; no seed comes twice."""
        seeds = iter(range(self._plan.seed, 1 << 62))
        options = {"temperature": 1.0, "rule": rule, "logprobs": max(RANKS)}
        return [
            self._write(ids, drafter, seed=next(seeds), **options)
            for ids in self.prompts
            for _ in range(self._plan.samples)
        ]

    def _write(self, ids: Sequence[int], drafter: str, **options: Any) -> specrt.Result:
        result = self.model.generate(
            ids, drafter=drafter, budget=BUDGET, max_tokens=self._plan.tokens, **options
        )
        self._done += 1
        self._show(self._done, self._plan.texts)
        return result

    def _processor(self, place: int) -> Callable[[Sequence[int], np.ndarray], np.ndarray]:
        """Makes half of the tokens less likely, which half depends on the token before, and leaves
        only a stop token at a place of the text."""
        stop = list(self.model.manifest.model.eos_ids)[:1]

        def processor(text: Sequence[int], row: np.ndarray) -> np.ndarray:
            row[text[-1] % 2 :: 2] -= 1.0
            if stop and len(text) == place:
                kept = row[stop].copy()
                row[:] = -math.inf
                row[stop] = kept
            return row

        return processor


# Claims


def _identity(
    writer: _Writer,
    drafter: str,
    claim: str,
    plain: Sequence[specrt.Result],
    texts: Sequence[specrt.Result],
) -> Finding:
    """Every text is the plain one; of the first that is not, where it leaves it."""
    wrong = [i for i, pair in enumerate(zip(plain, texts, strict=True)) if _told(*pair)]
    count = f"{len(plain) - len(wrong)} of {len(plain)} texts identical"
    figures: dict[str, Any] = {"texts": len(plain), "identical": len(plain) - len(wrong)}
    if not wrong:
        return Finding(drafter, claim, True, count, figures)
    first = wrong[0]
    where = _difference(writer.model, writer.prompts[first], plain[first], texts[first])
    words = f"{count}; text {first + 1} differs at token {where['position'] + 1}: plain wrote "
    words += f"{where['plain']}, with drafts it is {where['drafted']}"
    gap = where["gap"]
    words += "" if gap is None else f", logit {-gap:+.3g}"
    return Finding(drafter, claim, False, words, {**figures, "prompt": first, **where})


def _told(plain: specrt.Result, other: specrt.Result) -> bool:
    """Whether a reader could tell two texts apart."""
    one, two = ((r.tokens, r.text, r.finish_reason) for r in (plain, other))
    return one != two


def _difference(
    model: specrt.Model, prompt: Sequence[int], plain: specrt.Result, other: specrt.Result
) -> dict[str, Any]:
    """The first place where two texts differ, both tokens (None: the text has ended), and how far
    the second one's logit is below the first one's there."""
    longer = max(len(plain.tokens), len(other.tokens))
    one, two = ([*r.tokens, *[None] * (longer + 1 - len(r.tokens))] for r in (plain, other))
    place = next((i for i in range(longer) if one[i] != two[i]), longer)
    gap = None
    first, second = one[place], two[place]
    if first is not None and second is not None:
        before = [*prompt, *plain.tokens[:place]]
        every = model.manifest.model.vocab
        row = model.generate(before, drafter=PLAIN, max_tokens=1, logprobs=every)
        chances = dict(row.trace.steps[0].logprobs[0].top)
        gap = chances[first] - chances[second]
    return {"position": place, "plain": first, "drafted": second, "gap": gap}


def _drafts(
    drafter: str,
    cases: Sequence[Sequence[specrt.Result]],
    texts: Sequence[specrt.Result],
    again: Sequence[specrt.Result],
) -> Finding:
    """Tokens were drafted and some accepted, and the same ones when the prompts came in another
    order: a draft depends on the text alone."""
    figures = _drafted([result for case in cases for result in case])
    pairs = enumerate(zip(texts, again, strict=True))
    other = [i for i, pair in pairs if not _drafted_alike(*pair)]
    words = f"{figures['accepted']} of {figures['drafted']} accepted"
    if other:
        words += f"; text {other[0] + 1} was drafted otherwise when it came after another one"
    holds = figures["accepted"] > 0 and not other
    return Finding(drafter, "drafts", holds, words, {**figures, "unrepeatable": len(other)})


def _drafted(results: Sequence[specrt.Result]) -> dict[str, int]:
    steps = [step for result in results for step in result.trace.steps]
    return {
        "drafted": sum(step.drafted for step in steps),
        "accepted": sum(step.accepted for step in steps),
    }


def _drafted_alike(one: specrt.Result, two: specrt.Result) -> bool:
    """Whether the same tokens were drafted, with the same chances but for rounding."""
    first, second = ([step.detail for step in r.trace.steps if step.detail] for r in (one, two))
    return len(first) == len(second) and all(
        a.tokens == b.tokens and np.allclose(a.q, b.q, rtol=0.01)
        for a, b in zip(first, second, strict=True)
    )


# Laws


def _control(rule: str, law: Law) -> Finding:
    figures = {"tokens": law.tokens, "sigma": law.sigma, "noticed": law.noticed}
    words = f"{law.tokens} tokens, {law.sigma:.1f} sigma; {law.noticed:.1%} wrong would be noticed"
    return Finding("plain", f"law, {rule}", law.sigma < SIGMA, words, figures)


def _law(drafter: str, rule: str, results: Sequence[specrt.Result], plain: Law) -> Finding:
    """Against the model's own chances, and against plain decoding judged likewise."""
    law, drafted = Law.of(results), _drafted(results)
    sigma, apart = law.sigma, (law - plain).sigma
    words = f"{law.tokens} tokens, {sigma:.1f} sigma, {apart:.1f} from plain; "
    words += f"{drafted['accepted']} of {drafted['drafted']} accepted"
    figures = {"tokens": law.tokens, "sigma": sigma, "apart": apart, **drafted}
    holds = max(sigma, apart) < SIGMA and drafted["drafted"] > 0
    return Finding(drafter, f"law, {rule}", holds, words, figures)


def _rms(rms: float) -> str:
    return "bit for bit" if rms == 0 else f"within {rms:.2g}"
