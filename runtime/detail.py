"""What is computed about a step only when asked for: log-probabilities and the trace's detail."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specrt.runtime.proposal import ROOT
from specrt.runtime.sampling import top_k
from specrt.runtime.scored import Scored
from specrt.runtime.verify import Verdict


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural-log probability under a row of logits at temperature 1, nothing cut, and
    the most likely tokens with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """The inside of a step. q, p: the probability of each node's own token where it was drawn and
    under the target; p is None for nodes whose parent was not reached. rejected: nodes tried and
    refused. path: nodes accepted. bonus: the target's token after them."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: tuple[float, ...]
    p: tuple[float | None, ...]
    path: tuple[int, ...]
    rejected: tuple[int, ...]
    bonus: int


def logprobs(rows: Sequence[np.ndarray], tokens: Sequence[int], top: int) -> tuple[Logprob, ...]:
    """For tokens (m,) emitted from m rows of logits (V,), with the `top` best of each row."""
    return tuple(_logprob(row, token, top) for row, token in zip(rows, tokens, strict=True))


def detail(scored: Scored, verdict: Verdict) -> Detail:
    """How `verdict` came about, from what verify saw."""
    proposal = scored.proposal
    p: list[float | None] = [None] * proposal.size
    rejected: list[int] = []
    for node in (ROOT, *verdict.path):
        law = scored.p(node)
        children = proposal.children(node)
        for child in children:
            p[child] = law.of(int(proposal.tokens[child]))
        tried = next((i for i, child in enumerate(children) if child in verdict.path), None)
        rejected += children[:tried]
    tokens = tuple(proposal.tokens.tolist())
    return Detail(
        tokens=tokens,
        parents=tuple(proposal.parents.tolist()),
        q=tuple(proposal.law(node).of(token) for node, token in enumerate(tokens)),
        p=tuple(p),
        path=verdict.path,
        rejected=tuple(rejected),
        bonus=verdict.bonus,
    )


def _logprob(row: np.ndarray, token: int, top: int) -> Logprob:
    shifted = row.astype(np.float64) - row.max()
    values = shifted - np.log(np.exp(shifted).sum())
    best = top_k(row, min(top, row.size)).tolist() if top else []
    best.sort(key=lambda i: (-values[i], i))
    return Logprob(token, float(values[token]), tuple((i, float(values[i])) for i in best))
