"""Sampled text follows the target's law, through the whole loop, whatever drafts.

Each case draws RUNS texts of 3 tokens over a vocabulary of 5 and compares their counts with the
enumerated law by chi-square. Texts expected fewer than 5 times are counted as one. A case fails 5
standard deviations above the mean, which a right loop does in about 1 of 20,000 cases; the seeds
are fixed. The budget is 2: less than the text, so that the bonus shows, and more than 1, so that a
law taken from the wrong row shows.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from fakes import Drawing, FakeSession, Oracle, RandomTree, fake_logits

from specrt.runtime.controller import Fixed
from specrt.runtime.decode import Request, decode
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.first import First
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.drafters.none import Plain
from specrt.runtime.interfaces import Drafter
from specrt.runtime.rules import EXACT, LOSSY
from specrt.runtime.sampling import Sampling

VOCAB, HORIZON, BUDGET, RUNS = 5, 3, 2, 3000
PROMPT = (1, 2, 1, 3, 1)
SIGMAS = 5

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": Plain,
    "ngram": lambda: Ngram(2, 1),
    "draft": lambda: DraftModel(FakeSession(1)),
    "drawing": lambda: Drawing(1, VOCAB),
    "oracle": lambda: Oracle(0, VOCAB, miss=2),
    "tree": lambda: RandomTree(1, VOCAB),
    "certain tree": lambda: RandomTree(1, VOCAB, certain=True),
    "ngram+draft": lambda: First([Ngram(2, 2), DraftModel(FakeSession(1))]),
    "padded draft": lambda: DraftModel(FakeSession(1, vocab=7), limit=VOCAB),
}
SAMPLINGS = {
    "plain": Sampling(0.8),
    "cut": Sampling(1.2, top_k=4, top_p=0.9, min_p=0.05),
}
Law = dict[tuple[int, ...], float]


def text_law(sampling: Sampling, padded: int = VOCAB) -> Law:
    """The probability of every text, where the target has `padded` logits, VOCAB of them real."""
    law = {}
    for text in product(range(VOCAB), repeat=HORIZON):
        rows = [fake_logits(0, padded, (*PROMPT, *text[:i]))[:VOCAB] for i in range(HORIZON)]
        chances = [sampling.probs(row)[token] for row, token in zip(rows, text, strict=True)]
        law[text] = float(np.prod(chances))
    return law


def deviation(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """Chi-square in standard deviations above its mean."""
    runs = counts.total()
    assert all(law[text] > 0 for text in counts), "a text that the target never writes"
    rare = {text for text, chance in law.items() if chance * runs < 5}
    cells = [(counts[text], chance * runs) for text, chance in law.items() if text not in rare]
    cells.append((sum(counts[text] for text in rare), sum(law[text] for text in rare) * runs))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells if mean)
    freedom = len(cells) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def sampled(
    drafter: Drafter, sampling: Sampling, padded: int = VOCAB, rule: str = "coupled"
) -> tuple[Counter[tuple[int, ...]], int]:
    """Counts of the texts written, and how many draft tokens were accepted."""
    target, accepted = FakeSession(0, vocab=padded), 0
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(RUNS):
        request = Request(PROMPT, max_tokens=HORIZON, sampling=sampling, seed=seed, rule=rule)
        steps = list(decode(target, drafter, Fixed(BUDGET), request, limit=VOCAB))
        counts[tuple(token for step in steps for token in step.emitted)] += 1
        accepted += sum(step.accepted for step in steps)
    return counts, accepted


# Under the coupled rule text does not depend on the drafter (test_coupled.py), so two are enough.
CASES = [
    *((name, "block", "cut") for name in DRAFTERS),
    *((name, "coupled", cut) for name in ("none", "drawing") for cut in SAMPLINGS),
    *(("tree", rule, "plain") for rule in EXACT if rule != "coupled"),
]


@pytest.mark.parametrize(("name", "rule", "cut"), CASES)
def test_sampled_text_follows_the_target(name, rule, cut):
    counts, accepted = sampled(DRAFTERS[name](), SAMPLINGS[cut], rule=rule)
    assert deviation(counts, text_law(SAMPLINGS[cut])) < SIGMAS
    assert (accepted > 0) == (name != "none")


@pytest.mark.parametrize("rule", LOSSY)
def test_a_lossy_rule_is_seen(rule):
    counts, _ = sampled(DRAFTERS["draft"](), SAMPLINGS["plain"], rule=rule)
    assert deviation(counts, text_law(SAMPLINGS["plain"])) > SIGMAS


def test_sampled_text_of_a_padded_target_follows_the_law_of_its_real_tokens():
    sampling = SAMPLINGS["plain"]
    counts, _ = sampled(DRAFTERS["padded draft"](), sampling, padded=8, rule="block")
    assert deviation(counts, text_law(sampling, padded=8)) < SIGMAS


def test_a_law_that_is_a_little_off_is_seen():
    """The control: texts of temperature 0.9 against the law of 0.8."""
    counts, _ = sampled(Plain(), Sampling(0.9))
    assert deviation(counts, text_law(SAMPLINGS["plain"])) > SIGMAS
