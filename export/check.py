"""What an exported graph must do before it is delivered.

Each check runs the same tokens in two ways that must agree. A difference of zero means bit for bit.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specrt.runtime.errors import CheckError, SourceError
from specrt.runtime.interfaces import Session

MOST_ROWS = 16  # row invariance is checked for blocks of 1 to this many rows
PREFIX = 48  # tokens read before the blocks that are compared, or fewer in a short context
FEWEST = 2 * MOST_ROWS


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest root mean square difference allowed, relative to the spread of the logits.

    rows: between blocks of different sizes. tree: between a path in a tree and the path alone,
    whose keys stand at other places, so that sums are taken in another order; formats that round
    activations to 8 bits amplify that. After a rollback the same calls give the same bits, always.
    """

    rows: float
    tree: float


EXACT = Limits(rows=0.0, tree=1e-4)
ROUNDED = Limits(rows=0.0, tree=0.1)  # 8-bit activations: 0.02 to 0.08 measured
HALF = Limits(rows=0.02, tree=0.02)  # 16-bit floats: kernels differ with the number of rows


@dataclass(frozen=True, slots=True)
class Difference:
    """rms: root mean square difference over the spread of the logits; 0 is bit for bit.
    agreement: share of rows with the same most likely token."""

    rms: float
    agreement: float


def check_graph(session: Session, tokens: Sequence[int], limits: Limits) -> dict[str, Any]:
    """Run every check on `tokens` (FEWEST or more); CheckError for the first that fails. A graph
    that reads chains only is not asked for a tree. SourceError if the context is too short."""
    if len(tokens) < FEWEST:
        raise SourceError(
            f"a text of {len(tokens)} tokens is too short for the checks, they need {FEWEST}; "
            "choose a longer --context, or leave the checks out with --no-check"
        )
    ids = np.asarray(tokens[: PREFIX + MOST_ROWS], np.int64)
    found: dict[str, Any] = {}
    for name, check, limit in (
        ("chunks", _chunks, limits.rows),
        ("rows", _rows, limits.rows),
        ("rollback", _rollback, 0.0),
        ("tree", _tree, limits.tree),
    ):
        if name == "tree" and not session.verifies_trees:
            continue
        difference = check(session, ids)
        if not difference.rms <= limit:
            raise CheckError(
                f"the graph fails its check {name!r}: logits differ by {difference.rms:.2g} of "
                f"their spread, at most {limit:g} is allowed"
            )
        found[name] = asdict(difference)
    session.keep(0)
    return found


def _logits(session: Session, ids: np.ndarray, block: int) -> np.ndarray:
    """Logits of the last MOST_ROWS tokens, read `block` at a time after the others."""
    session.keep(0)
    first = len(ids) - MOST_ROWS
    session.forward(ids[:first])
    parts = [ids[i : i + block] for i in range(first, len(ids), block)]
    return np.concatenate([session.forward(part, last=len(part)).logits for part in parts])


def _rows(session: Session, ids: np.ndarray) -> Difference:
    """Blocks of every size give each row the same logits."""
    whole = _logits(session, ids, MOST_ROWS)
    return _worst(compare(_logits(session, ids, k), whole) for k in range(1, MOST_ROWS))


def _chunks(session: Session, ids: np.ndarray) -> Difference:
    """The whole text at once, token by token, and in chunks."""
    differences = []
    session.keep(0)
    whole = session.forward(ids, last=len(ids)).logits
    for size in (1, 7):
        session.keep(0)
        parts = [ids[i : i + size] for i in range(0, len(ids), size)]
        logits = np.concatenate([session.forward(p, last=len(p)).logits for p in parts])
        differences.append(compare(logits, whole))
    return _worst(differences)


def _rollback(session: Session, ids: np.ndarray) -> Difference:
    """After reading and forgetting something else, as if nothing had been read."""
    fresh = _logits(session, ids, 4)
    first = len(ids) - MOST_ROWS
    session.keep(0)
    session.forward(ids[:first])
    session.forward(ids[::-1][:MOST_ROWS])
    session.keep(first)
    again = [session.forward(ids[i : i + 4], last=4).logits for i in range(first, len(ids), 4)]
    return compare(np.concatenate(again), fresh)


def _tree(session: Session, ids: np.ndarray) -> Difference:
    """Each path of a tree as when it is read alone, and going on from it after compaction."""
    first = len(ids) - MOST_ROWS
    root, rest = ids[first], ids[first + 1 :]
    tree = np.array([root, *rest[:2], *rest[2:5], *rest[5:7]])
    parents = np.array([-1, 0, 1, 0, 3, 4, 3, 6])
    paths = ([0, 1, 2], [0, 3, 4, 5], [0, 3, 6, 7])
    session.keep(0)
    session.forward(ids[:first])
    logits = session.forward(tree, parents, last=len(tree)).logits
    differences = []
    for path in paths:
        session.keep(first)
        alone = session.forward(tree[path], last=len(path)).logits
        after = session.forward(rest[7:9], last=2).logits
        session.keep(first)
        session.forward(tree, parents)
        session.keep(first, path)
        went_on = session.forward(rest[7:9], last=2).logits
        differences += [compare(logits[path], alone), compare(went_on, after)]
    return _worst(differences)


def compare(logits: np.ndarray, wanted: np.ndarray) -> Difference:
    """Of two (n, V) arrays of logits."""
    with np.errstate(all="ignore"):  # logits that are not finite differ by NaN, which is no pass
        error = np.sqrt(np.mean(np.square(logits - wanted, dtype=np.float64)))
        spread = wanted.std() or 1.0
    agreed = np.mean(logits.argmax(axis=1) == wanted.argmax(axis=1))
    return Difference(float(error / spread), float(agreed))


def _worst(differences: Any) -> Difference:
    found = list(differences)
    rms = float(np.max([d.rms for d in found]))  # NaN if one is
    return Difference(rms, min(d.agreement for d in found))
