"""The loop: the text does not depend on the drafter, and the cache is always the text's."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from fakes import Drawing, FakeSession, Oracle, RandomTree, fake_logits

from specrt.runtime import decode as decode_module
from specrt.runtime.controller import Fixed
from specrt.runtime.decode import Request, cut, decode
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.first import First
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.drafters.none import Plain
from specrt.runtime.errors import CapacityError, RequestError
from specrt.runtime.interfaces import Context, Drafter
from specrt.runtime.proposal import Proposal, chain
from specrt.runtime.rules import EXACT
from specrt.runtime.sampling import Sampling
from specrt.runtime.trace import Step

VOCAB = 5
TARGET = 0  # the seed of the model under test

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": Plain,
    "ngram": lambda: Ngram(3, 1),
    "draft": lambda: DraftModel(FakeSession(1, vocab=VOCAB)),
    "perfect draft": lambda: DraftModel(FakeSession(TARGET, vocab=VOCAB)),
    "oracle": lambda: Oracle(TARGET, VOCAB, miss=3),
    "tree": lambda: RandomTree(TARGET, VOCAB, certain=True),
    "wide tree": lambda: RandomTree(1, VOCAB, width=3, certain=True),
    "ngram+draft": lambda: First([Ngram(3, 2), DraftModel(FakeSession(1, vocab=VOCAB))]),
}


def plain_text(prompt: Sequence[int], count: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """Greedy decoding without loop or cache."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(fake_logits(TARGET, VOCAB, tuple(text)).argmax()))
        if text[-1] in stop:
            break
    return text[len(prompt) :]


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.emitted]


def run(
    drafter: Drafter, request: Request, *, budget: int = 4, target: FakeSession | None = None
) -> list[Step]:
    """All steps, the loop's invariant checked after each."""
    target = FakeSession(TARGET, vocab=VOCAB) if target is None else target
    steps: list[Step] = []
    for step in decode(target, drafter, Fixed(budget), request):
        steps.append(step)
        assert target.entries == [*request.prompt, *tokens_of(steps)][:-1]
        assert step.emitted
        assert 0 <= step.accepted <= step.drafted <= budget
    return steps


def random_prompt(seed: int) -> tuple[int, ...]:
    rng = np.random.default_rng(seed)
    return tuple(int(token) for token in rng.integers(0, VOCAB, rng.integers(1, 12)))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("budget", range(6))
def test_greedy_text_does_not_depend_on_the_drafter(name, budget):
    for seed in range(8):
        prompt = random_prompt(seed)
        steps = run(DRAFTERS[name](), Request(prompt, max_tokens=17), budget=budget)
        assert tokens_of(steps) == plain_text(prompt, 17)
        assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["length"]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("stop", range(VOCAB))
def test_a_stop_token_ends_the_text_wherever_in_a_block_it_falls(name, stop):
    for seed in range(8):
        prompt, ids = random_prompt(seed), frozenset({stop})
        steps = run(DRAFTERS[name](), Request(prompt, max_tokens=30, stop=ids), budget=5)
        text = plain_text(prompt, 30, ids)
        assert tokens_of(steps) == text
        assert steps[-1].finish == ("stop" if text[-1] == stop else "length")


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("count", range(1, 8))
def test_max_tokens_is_met_exactly(name, count):
    prompt = random_prompt(3)
    steps = run(DRAFTERS[name](), Request(prompt, max_tokens=count), budget=4)
    assert tokens_of(steps) == plain_text(prompt, count)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("room", range(1, 8))
def test_the_text_ends_with_the_context_and_nothing_fails(name, room):
    prompt = random_prompt(3)
    target = FakeSession(TARGET, vocab=VOCAB, capacity=len(prompt) + room)
    steps = run(DRAFTERS[name](), Request(prompt, max_tokens=100), budget=4, target=target)
    assert tokens_of(steps) == plain_text(prompt, room)
    assert steps[-1].finish == "length"


def test_a_perfect_drafter_is_always_accepted():
    steps = run(DRAFTERS["perfect draft"](), Request((1, 2), max_tokens=18), budget=4)
    counts = [(step.drafted, step.accepted, len(step.emitted)) for step in steps]
    assert counts == [(4, 4, 5), (4, 4, 5), (4, 4, 5), (2, 2, 3)]


@pytest.mark.parametrize("rule", ["coupled", "block", "rejection", "kseq"])
def test_a_perfect_drafter_is_always_accepted_when_sampling(rule):
    sampling = Sampling(0.9, top_k=4, top_p=0.95)
    request = Request((1, 2), max_tokens=18, sampling=sampling, rule=rule)
    steps = run(Drawing(TARGET, VOCAB), request, budget=4)
    counts = [(step.drafted, step.accepted, len(step.emitted)) for step in steps]
    assert counts == [(4, 4, 5), (4, 4, 5), (4, 4, 5), (2, 2, 3)]


def test_a_block_is_cut_at_its_first_stop_token():
    text = plain_text((1, 2), 5)
    stop = text[2]
    place = text.index(stop)
    (step,) = run(
        DRAFTERS["perfect draft"](), Request((1, 2), max_tokens=50, stop=frozenset({stop}))
    )
    assert (step.drafted, step.accepted, step.emitted) == (4, place + 1, tuple(text[: place + 1]))
    assert (step.finish, step.text_tokens) == ("stop", tuple(text[:place]))


@pytest.mark.parametrize(
    ("room", "stop", "kept", "finish"),
    [
        (9, {7}, (5, 6, 7), "stop"),
        (3, {7}, (5, 6, 7), "stop"),  # both at the same token
        (2, {7}, (5, 6), "length"),
        (4, {7}, (5, 6, 7), "stop"),  # a stop before the cap
        (4, {1}, (5, 6, 7, 8), "length"),
        (9, {1}, (5, 6, 7, 8), None),
        (9, {8, 6}, (5, 6), "stop"),
    ],
)
def test_the_first_of_stop_and_cap_ends_the_text(room, stop, kept, finish):
    assert cut((5, 6, 7, 8), room, frozenset(stop)) == (kept, finish)


def test_no_tokens_asked_is_no_step():
    assert run(Plain(), Request((1, 2), max_tokens=0)) == []


def test_a_prompt_of_one_token_needs_no_prefill():
    target = FakeSession(TARGET, vocab=VOCAB)
    assert tokens_of(run(Plain(), Request((3,), max_tokens=4), target=target)) == plain_text(
        (3,), 4
    )
    assert target.reads == [1, 1, 1, 1]


def test_a_long_prompt_is_read_in_chunks(monkeypatch):
    monkeypatch.setattr(decode_module, "PREFILL_CHUNK", 3)
    target, prompt = FakeSession(TARGET, vocab=VOCAB), (1, 2, 3, 4, 0, 1, 2, 3, 4)
    steps = run(Plain(), Request(prompt, max_tokens=2), target=target)
    assert target.reads == [3, 3, 2, 1, 1]
    assert tokens_of(steps) == plain_text(prompt, 2)
    assert steps[0].prefill_s > 0
    assert steps[1].prefill_s == 0


# One cache, many requests


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_second_request_is_as_if_it_were_the_first(name):
    drafter, target = DRAFTERS[name](), FakeSession(TARGET, vocab=VOCAB)
    for seed in range(6):
        prompt = random_prompt(seed)
        steps = run(drafter, Request(prompt, max_tokens=9), target=target)
        assert tokens_of(steps) == plain_text(prompt, 9)


@pytest.mark.parametrize("cached", [0, 3, 4, 5, 99])
def test_what_is_cached_of_the_prompt_is_not_read_again(cached):
    target, prompt = FakeSession(TARGET, vocab=VOCAB), (1, 2, 3, 4, 0)
    target.forward(prompt)  # the whole prompt, the last token too
    target.reads.clear()
    steps = list(decode(target, Plain(), Fixed(0), Request(prompt, max_tokens=3), cached=cached))
    assert tokens_of(steps) == plain_text(prompt, 3)
    assert target.reads == ([4 - cached] if cached < 4 else []) + [1, 1, 1]


def test_a_conversation_keeps_what_the_turns_share():
    target, drafter = FakeSession(TARGET, vocab=VOCAB), DRAFTERS["ngram+draft"]()
    first = list(decode(target, drafter, Fixed(3), Request((1, 2, 3), max_tokens=6)))
    prompt = (1, 2, 3, *tokens_of(first), 4, 0)
    held = target.length
    target.reads.clear()
    second = list(decode(target, drafter, Fixed(3), Request(prompt, max_tokens=6), cached=held))
    assert target.reads[0] == len(prompt) - 1 - held
    assert tokens_of(second) == plain_text(prompt, 6)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("taken", range(4))
def test_a_text_abandoned_at_any_step_leaves_a_prefix_of_it(name, taken):
    drafter, target, prompt = DRAFTERS[name](), FakeSession(TARGET, vocab=VOCAB), (1, 2, 3)
    steps: Iterator[Step] = decode(target, drafter, Fixed(4), Request(prompt, max_tokens=30))
    kept = tokens_of([next(steps) for _ in range(taken)])
    steps.close()
    assert target.entries == ([*prompt, *kept][:-1] if taken else [])
    assert tokens_of(run(drafter, Request((4, 0), max_tokens=9), target=target)) == plain_text(
        (4, 0), 9
    )


def test_a_text_closed_late_does_not_touch_the_next_one():
    target = FakeSession(TARGET, vocab=VOCAB)
    late = decode(target, Plain(), Fixed(0), Request((1, 2, 3), max_tokens=9))
    next(late)
    run(Plain(), Request((4, 0, 1, 2), max_tokens=9), target=target)
    held = list(target.entries)
    late.close()
    assert target.entries == held


class Interrupted(FakeSession):
    """Is interrupted in its n-th forward, before or after the cache grew."""

    def __init__(self, at: int, *, grown: bool) -> None:
        super().__init__(TARGET, vocab=VOCAB)
        self.at, self.grown = at, grown

    def forward(self, tokens, parents=None, last=1):
        self.at -= 1
        if self.at == 0 and not self.grown:
            raise KeyboardInterrupt
        output = super().forward(tokens, parents, last)
        if self.at == 0:
            raise KeyboardInterrupt
        return output


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("grown", [False, True])
def test_an_interrupt_leaves_a_prefix_of_the_text(name, at, grown):
    drafter, target, prompt = DRAFTERS[name](), Interrupted(at, grown=grown), (1, 2, 3)
    steps: list[Step] = []
    with pytest.raises(KeyboardInterrupt):
        steps.extend(decode(target, drafter, Fixed(4), Request(prompt, max_tokens=30)))
    text = [*prompt, *plain_text(prompt, 30)]
    assert target.entries == text[: target.length]
    assert tokens_of(run(drafter, Request(prompt, max_tokens=9), target=target)) == plain_text(
        prompt, 9
    )


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("grown", [False, True])
def test_an_interrupted_draft_model_is_right_the_next_time(at, grown):
    draft = Interrupted(at, grown=grown)
    drafter, request = DraftModel(draft), Request((1, 2, 3), max_tokens=9)
    with pytest.raises(KeyboardInterrupt):
        run(drafter, request)
    steps = run(drafter, request)
    assert tokens_of(steps) == plain_text((1, 2, 3), 9)
    assert [step.accepted for step in steps] == [4, 3]


# What drafters are told


class Watching:
    """Proposes a fixed chain and keeps what it was told."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.contexts, self.budgets = tokens, [], []

    def propose(self, context: Context, budget: int, rng: np.random.Generator) -> Proposal:
        self.contexts.append((list(context.tokens), context.hidden, context.sampling))
        self.budgets.append(budget)
        return chain(self.tokens[:budget])


def test_a_drafter_sees_the_whole_text_and_the_targets_rows_behind_its_end():
    watching, request = Watching([3, 3, 3]), Request((1, 2), max_tokens=12)
    steps = run(watching, request)
    text = list(request.prompt)
    assert watching.contexts[0][1] is None
    for step, (tokens, hidden, sampling) in zip(steps, watching.contexts, strict=True):
        assert tokens == text
        assert sampling is request.sampling
        if hidden is not None:  # (length, last token) of the texts that gave the last tokens
            ends = range(len(text) - len(hidden), len(text))
            assert hidden.tolist() == [[end, text[end - 1]] for end in ends]
        text += step.emitted


def test_a_tree_drafter_sees_the_rows_of_the_accepted_path():
    class WatchingTree(Watching):
        def propose(self, context, budget, rng):
            super().propose(context, budget, rng)
            return RandomTree(TARGET, VOCAB, certain=True).propose(context, budget, rng)

    watching = WatchingTree([])
    steps = run(watching, Request((1, 2), max_tokens=20), budget=5)
    assert max(step.accepted for step in steps) == 2  # the depth of the tree
    for tokens, hidden, _ in watching.contexts[1:]:
        ends = range(len(tokens) - len(hidden), len(tokens))
        assert hidden.tolist() == [[end, tokens[end - 1]] for end in ends]


def test_the_budget_leaves_room_for_the_bonus_at_the_end():
    watching = Watching([])
    run(watching, Request((1, 2), max_tokens=6), budget=3)
    assert watching.budgets == [3, 3, 3, 2, 1, 0]


def test_the_block_is_a_chain_to_the_model_when_it_is_one():
    class Chains(FakeSession):
        def forward(self, tokens, parents=None, last=1):
            assert parents is None
            return super().forward(tokens, parents, last)

    run(Oracle(TARGET, VOCAB, 2), Request((1, 2), max_tokens=9), target=Chains(TARGET, vocab=VOCAB))


# The edges of the vocabulary and of the context


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(2.0), Sampling(1.0, top_k=3)])
def test_a_padding_id_is_never_emitted(sampling):
    target, draft = FakeSession(TARGET, vocab=40), FakeSession(1, vocab=52)
    request = Request((1, 2), max_tokens=200, sampling=sampling, seed=1)
    steps = list(decode(target, DraftModel(draft, limit=5), Fixed(3), request, limit=5))
    assert set(tokens_of(steps)) <= set(range(5))
    assert sum(step.accepted for step in steps) > 0


def test_a_prompt_that_fills_the_context_is_refused():
    target = FakeSession(TARGET, vocab=VOCAB, capacity=4)
    with pytest.raises(RequestError, match="4 tokens and the context 4"):
        decode(target, Plain(), Fixed(0), Request((1, 2, 3, 4)))


@pytest.mark.parametrize("token", [-1, 5])
def test_a_prompt_of_unknown_tokens_is_refused(token):
    with pytest.raises(RequestError, match=f"token {token}; the model has tokens 0 to 4"):
        decode(FakeSession(TARGET, vocab=VOCAB), Plain(), Fixed(0), Request((1, token)))


@pytest.mark.parametrize(
    "options",
    [{"prompt": ()}, {"max_tokens": -1}, {"seed": -1}, {"logprobs": -1}, {"rule": "fast"}],
    ids=str,
)
def test_an_impossible_request_is_refused(options):
    with pytest.raises(RequestError):
        Request(**{"prompt": (1,), **options})


def test_a_negative_budget_is_refused():
    with pytest.raises(RequestError, match="-1"):
        Fixed(-1)


def test_the_fake_model_refuses_what_does_not_fit():
    with pytest.raises(CapacityError):
        FakeSession(TARGET, vocab=VOCAB, capacity=2).forward((1, 2, 3))


@pytest.mark.parametrize("rule", ["coupled", "block", "lenience:0.5"])
def test_every_step_says_its_rule_and_whether_it_is_lossy(rule):
    request = Request((1, 2), max_tokens=9, sampling=Sampling(1.0), rule=rule)
    for step in run(DRAFTERS["draft"](), request):
        assert (step.rule, step.lossy) == (rule, rule == "lenience:0.5")


@pytest.mark.parametrize("rule", [*EXACT, "lenience", "topk:1", "typical"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_does_not_depend_on_the_rule(rule, name):
    for seed in range(3):
        prompt = random_prompt(seed)
        steps = run(DRAFTERS[name](), Request(prompt, max_tokens=17, rule=rule))
        assert tokens_of(steps) == plain_text(prompt, 17)


def test_the_same_seed_gives_the_same_text():
    def text(seed: int) -> list[int]:
        request = Request((1, 2), max_tokens=20, sampling=Sampling(1.0), seed=seed)
        return tokens_of(run(DRAFTERS["draft"](), request))

    assert text(3) == text(3)
    assert text(3) != text(4)
