"""Requests to one loaded bundle: how a text may end, and that nothing which happens in one request
is seen in the next."""

import gc
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from variants import noisy, readable, variant

import specrt.runtime
from specrt.export.build import export
from specrt.runtime.api import Model, load
from specrt.runtime.errors import RequestError
from specrt.runtime.stream import Stream

PROMPT = [0, *([5, 9, 17, 33] * 5), 5, 9]
OTHER = [0, 40, 41, 42, 43, 44, 45]
DRAFTERS = ["none", "ngram", "draft", "ngram+draft", "auto"]
CONTEXT = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that writes printable ASCII, with a draft that is now right and now wrong."""
    made = tmp_path_factory.mktemp("requests")
    draft = variant(made / "draft", noisy(0.03), readable)
    export(
        variant(made / "target", readable), made / "b", drafts=[draft], weights="fp32", check=False
    )
    return made / "b"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, threads=1)


@pytest.fixture
def perfect(tiny_bundle: Path) -> Model:
    """A model that is its own draft."""
    return load(tiny_bundle, threads=1)


# How a text ends


@pytest.fixture(scope="module")
def many_ends(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same model; three of the tokens it writes end a text, as its generation_config says."""
    made = tmp_path_factory.mktemp("ends")
    ends = [model.generate(p, drafter="none", max_tokens=9).tokens[8] for p in prompts(3)]
    draft = variant(made / "draft", noisy(0.03), readable)
    target = variant(made / "target", readable, generation={"eos_token_id": ends})
    export(target, made / "b", drafts=[draft], weights="fp32", check=False)
    return load(made / "b", threads=1)


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 270, 12).tolist() for _ in range(count)]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_stop_token_of_the_generation_settings_ends_a_text(
    model: Model, many_ends: Model, drafter: str
) -> None:
    ends, seen = many_ends.manifest.model.eos_ids, set()
    assert len(set(ends)) == 3
    for prompt in prompts(12):
        whole = model.generate(prompt, drafter="none", max_tokens=60).tokens
        length = next((i for i, token in enumerate(whole) if token in ends), None)
        result = many_ends.generate(prompt, drafter=drafter, max_tokens=60)
        assert result.tokens == whole[:length]
        assert result.finish_reason == ("length" if length is None else "stop")
        seen |= set() if length is None else {whole[length]}
    assert seen == set(ends)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_stop_string_may_span_tokens_and_blocks(model: Model, drafter: str) -> None:
    size = 40
    whole = model.generate(PROMPT, drafter="none", max_tokens=size)
    assert whole.text.isascii()
    steps = model.generate(PROMPT, drafter=drafter, max_tokens=size).trace.steps
    blocks = set(np.cumsum([len(step.emitted) for step in steps]).tolist())
    inside = set(range(1, size)) - blocks
    assert inside or drafter in ("none", "auto")  # which drafts only where measured times say so
    for cut in [*sorted(blocks)[:8], *sorted(inside)[:8]]:
        place = len(model.tokenizer.decode(whole.tokens[:cut]))
        stop = whole.text[place - 1 : place + 1]  # the end of one token, the beginning of the next
        result = model.generate(PROMPT, drafter=drafter, max_tokens=size, stop=["#" * 9, stop])
        assert result.text == whole.text[: whole.text.index(stop)]
        assert result.tokens == whole.tokens[: len(result.tokens)]
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 6, 11])
def test_at_the_end_of_the_context_drafts_shrink_and_the_text_ends(
    model: Model, drafter: str, room: int
) -> None:
    prompt = (PROMPT * 20)[: CONTEXT - room]
    plain = model.generate(prompt, drafter="none").tokens
    result = model.generate(prompt, drafter=drafter)
    assert (result.tokens, len(result.tokens), result.finish_reason) == (plain, room, "length")
    left = room - np.cumsum([0, *(len(step.emitted) for step in result.trace.steps)])
    assert all(s.drafted < now for s, now in zip(result.trace.steps, left, strict=False))


@pytest.mark.parametrize(("room", "drafted"), [(1, [0]), (3, [2]), (5, [4]), (12, [4, 4, 1])])
def test_a_perfect_draft_fills_the_context_to_its_last_token(
    perfect: Model, room: int, drafted: list[int]
) -> None:
    prompt = (PROMPT * 20)[: CONTEXT - room]
    steps = perfect.generate(prompt, drafter="draft", budget=4).trace.steps
    assert [step.drafted for step in steps] == drafted
    assert [len(step.emitted) for step in steps] == [n + 1 for n in drafted]


# Turns of a conversation


@contextmanager
def counted(session: Any) -> Iterator[list[int]]:
    """The rows of each call of the session."""
    rows: list[int] = []
    forward = session.forward

    def counting(tokens: Any, *args: Any, **kwargs: Any) -> Any:
        rows.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    session.forward = counting
    try:
        yield rows
    finally:
        del session.forward


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_turn_reads_only_what_is_new(folder: Path, drafter: str) -> None:
    model = load(folder, threads=1)
    first = [{"role": "user", "content": "the cat on the mat"}]
    answer = model.generate(messages=first, drafter=drafter, max_tokens=12)
    second = [
        *first,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "and the other one"},
    ]
    before, after = (model.prompt_ids(None, messages, False) for messages in (first, second))
    held = (*before, *answer.tokens)[:-1]  # the last token was emitted and never read
    kept = next(i for i in range(len(after)) if i == len(held) or held[i] != after[i])
    assert kept > len(before)
    with counted(model._held.session) as rows:
        result = model.generate(messages=second, drafter=drafter, max_tokens=12)
    steps = [step.drafted + 1 for step in result.trace.steps]
    assert rows == [len(after) - kept - 1, *steps]
    fresh = load(folder, threads=1).generate(messages=second, drafter="none", max_tokens=12)
    assert result.tokens == fresh.tokens


def test_a_conversation_taken_up_at_an_earlier_turn_reads_from_there(folder: Path) -> None:
    model = load(folder, threads=1)
    turns = [{"role": "user", "content": "the cat"}]
    for content in ("one", "two", "three"):
        answer = model.generate(messages=turns, max_tokens=6).text
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": content}]
    changed = [*turns[:2], {"role": "user", "content": "something else"}]
    asked = model.prompt_ids(None, changed, False)
    same = len(model.prompt_ids(None, turns[:1], False))
    with counted(model._held.session) as rows:
        result = model.generate(messages=changed, drafter="none", max_tokens=6)
    assert sum(rows) < len(asked) - same + 6
    fresh = load(folder, threads=1).generate(messages=changed, drafter="none", max_tokens=6)
    assert result.tokens == fresh.tokens


# Left, interrupted, repeated


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Callable[..., tuple[int, ...]]:
    """What a model that was asked nothing before writes plainly."""

    def write(prompt: list[int], **options: Any) -> tuple[int, ...]:
        return load(folder, threads=1).generate(prompt, drafter="none", **options).tokens

    return write


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("end", ["left", "closed", "forgotten"])
def test_a_stream_may_end_anywhere(folder: Path, wanted: Any, drafter: str, end: str) -> None:
    model = load(folder, threads=1)
    right = {0: wanted(PROMPT, max_tokens=10), 1: wanted(OTHER, max_tokens=10)}
    for pieces in range(8):
        stream = model.stream(PROMPT, drafter=drafter, max_tokens=30)
        for _ in range(pieces):
            next(stream)
        if end == "closed":
            stream.close()
        if end == "forgotten":
            del stream
            gc.collect()
        prompt = (PROMPT, OTHER)[pieces % 2]
        found = model.generate(prompt, drafter=drafter, max_tokens=10).tokens
        assert found == right[pieces % 2]


class Interrupter:
    """Raises KeyboardInterrupt at the n-th line that Python runs inside specrt.runtime.

    Not at a `with`, which is traced once more when its block is left: there Python looks at no
    signal, and nothing would close what the statement opened.
    """

    def __init__(self, at: int) -> None:
        self.left, self.root = at, str(Path(next(iter(specrt.runtime.__path__))))

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.root):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def run(self, task: Callable[[], object]) -> bool:
        """Whether the task was interrupted before its end."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            task()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_interrupt_at_any_line_leaves_the_model_right(
    folder: Path, wanted: Any, drafter: str
) -> None:
    model = load(folder, threads=1)
    size = 4
    asked = [(PROMPT, wanted(PROMPT, max_tokens=size)), (OTHER, wanted(OTHER, max_tokens=size))]
    model.generate(OTHER, drafter=drafter, max_tokens=1)
    at, interrupted = 1, True
    while interrupted:
        prompt = asked[at % 2][0]
        interrupter = Interrupter(at)
        interrupted = interrupter.run(
            lambda p=prompt: model.generate(p, drafter=drafter, max_tokens=size)
        )
        prompt, right = asked[at % 3 % 2]
        found = model.generate(prompt, drafter=drafter, max_tokens=size).tokens
        assert found == right, f"after an interrupt at line {at}"
        at += 5
    assert at > 300


def test_many_requests_do_not_disturb_each_other(folder: Path, wanted: Any) -> None:
    rng = np.random.default_rng(9)
    asked = []
    for prompt in [PROMPT, OTHER, PROMPT[:8], [*PROMPT, 50], *prompts(4)]:
        for size in (1, 12):
            asked.append((prompt, size, wanted(prompt, max_tokens=size)))
    model = load(folder, threads=1)
    for _ in range(120):
        prompt, size, right = asked[rng.integers(len(asked))]
        drafter, budget = rng.choice(DRAFTERS), int(rng.integers(0, 9))
        sampled = model.generate(prompt, drafter=drafter, temperature=1.0, seed=1, max_tokens=5)
        assert len(sampled.tokens) == 5
        found = model.generate(prompt, drafter=drafter, budget=budget, max_tokens=size)
        assert found.tokens == right


# Threads


def in_thread(task: Callable[[], object]) -> object:
    """What a task gives in a thread of its own, its error if it fails."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(task())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("method", ["generate", "stream"])
def test_another_thread_is_refused_while_a_text_is_streamed(model: Model, method: str) -> None:
    stream = model.stream(PROMPT, max_tokens=30)
    next(stream)
    refused = in_thread(lambda: getattr(model, method)(OTHER))
    assert isinstance(refused, RequestError)
    assert "another thread is streaming" in str(refused)
    list(stream)
    assert not isinstance(in_thread(lambda: list(model.stream(OTHER))), Exception)


def test_the_refusal_does_not_disturb_the_stream(folder: Path, wanted: Any) -> None:
    model = load(folder, threads=1)
    stream = model.stream(PROMPT, max_tokens=30)
    for _ in range(3):
        next(stream)
        in_thread(lambda: model.generate(OTHER))
    list(stream)
    assert stream.result.tokens == wanted(PROMPT, max_tokens=30)


def test_a_stream_left_by_a_thread_that_has_ended_is_in_nobodys_way(
    folder: Path, wanted: Any
) -> None:
    model = load(folder, threads=1)
    left: list[Stream] = []

    def leave() -> None:
        left.append(model.stream(PROMPT, max_tokens=30))
        next(left[0])

    in_thread(leave)
    assert model.generate(OTHER, max_tokens=10).tokens == wanted(OTHER, max_tokens=10)
    assert list(left[0]) == []


def test_texts_of_many_threads_are_each_right(folder: Path, wanted: Any) -> None:
    model, asked = load(folder, threads=1), [PROMPT, OTHER, *prompts(2)]
    right = [wanted(prompt, max_tokens=12) for prompt in asked]
    found: dict[int, list[tuple[int, ...]]] = {i: [] for i in range(len(asked))}

    def write(i: int) -> None:
        for _ in range(5):
            found[i].append(model.generate(asked[i], max_tokens=12).tokens)

    threads = [threading.Thread(target=write, args=(i,)) for i in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [tokens] * 5 for i, tokens in enumerate(right)}
