"""Make code-poem-code.jsonl: python tests/golden/make_changing.py BUNDLE > code-poem-code.jsonl

One text in three parts, each written by the bundle's target after the parts before it: code, a poem
(temperature 1.1), code again. With what its drafters would offer at each place, how much of it is
right, and how certain the target was.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import specrt
from specrt.bench.replay import Recorded, offers_of
from specrt.bench.simulator import Text
from specrt.runtime.drafters.first import parts
from specrt.runtime.proposal import NOTHING, ROOT
from specrt.runtime.sampling import GREEDY
from specrt.runtime.scored import Scored

SEED = 6  # writes a poem to its end
QUESTION = (
    "Write a Python class for a bank account with deposit, withdraw, transfer and a history of "
    "transactions. Then write a poem of forty lines about the sea at night, without rhymes. Then "
    "write a C program that reads numbers from a file, sorts them with quicksort and prints the "
    "median."
)
PARTS = (  # how it begins, tokens at most, temperature
    ("```python\nclass BankAccount:\n", 200, 0.0),
    ("\n```\n\nThe sea at night\n\n", 180, 1.1),
    ("\n\n```c\n#include <stdio.h>\n", 200, 0.0),
)


def certainties(model: specrt.Model, tokens: Sequence[int], count: int) -> tuple[float, ...]:
    """The target's, of the last `count` tokens of a text."""
    session, found = model._held.session, list[float]()
    session.keep(0)
    model._held.read = ()
    for token, following in pairwise(tokens):
        scored = Scored(NOTHING, session.forward([token]).logits, GREEDY, ())
        found.append(scored.certainty(ROOT, following))
    return tuple(found[-count:])


def main(bundle: str) -> None:
    model = specrt.load(Path(bundle))
    prompt, ends = model.prompt_ids(QUESTION), list[int]()
    written: list[int] = []
    for opening, tokens, temperature in PARTS:
        written += model.encode(opening)
        before = (*prompt, *written)
        how = {"drafter": "none", "max_tokens": tokens, "temperature": temperature, "seed": SEED}
        written += model.generate(before, **how).tokens
        ends.append(len(written))
    drafters = zip(model._parts("auto"), parts(model._drafter("auto")), strict=True)
    offers = {name: offers_of(part, prompt, written) for name, part in drafters}
    sure = certainties(model, (*prompt, *written), len(written))
    text = Text(offers, len(prompt), (), len(written), tuple(written), sure)
    print(Recorded("code-poem-code", "changing", text).to_json())
    print(f"the parts end after {ends} tokens", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
