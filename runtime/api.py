"""Strings in, pieces of text out: what `specrt.load` gives.

A model runs one request at a time. `generate` waits for another thread's `generate`; a new request
ends a stream that the same thread, or one that has ended, left unfinished, and is refused while
another thread streams.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

from specrt.runtime import policies, profile
from specrt.runtime.acceptance import Habits
from specrt.runtime.adaptive import Adaptive, Memory
from specrt.runtime.bundle import (
    DrafterInfo,
    Manifest,
    ModelInfo,
    check_hashes,
    read_manifest,
)
from specrt.runtime.chat import render
from specrt.runtime.controller import AUTO_BUDGET, Controller, Fixed
from specrt.runtime.costs import READ_SHARE, Costs, DraftCost
from specrt.runtime.decode import Request
from specrt.runtime.drafters import named
from specrt.runtime.drafters.draft import DraftModel
from specrt.runtime.drafters.first import First, is_free, parts
from specrt.runtime.drafters.ngram import Ngram
from specrt.runtime.drafters.none import Plain
from specrt.runtime.errors import RequestError
from specrt.runtime.evenness import plain_reason
from specrt.runtime.grammar import Forms, Guided, Schema, constrained
from specrt.runtime.interfaces import Drafter, Session
from specrt.runtime.noise import fresh_seed
from specrt.runtime.open import open_session
from specrt.runtime.options import How, sampling
from specrt.runtime.policies import COST, Policy
from specrt.runtime.providers import choose, physical_cores
from specrt.runtime.rules import COUPLED
from specrt.runtime.stream import Held, Result, Stream
from specrt.runtime.text import TextStream, encode, load_tokenizer, real_ids
from specrt.runtime.tuning import BRIEF, Progress, measure, quiet

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int]
MEASURING = "measuring this device once"


def load(
    path: str | Path,
    *,
    drafter: str = "auto",
    provider: str = "auto",
    threads: int = 0,
    tune: bool = True,
    progress: Progress | None = None,
) -> "Model":
    """Open a bundle. drafter: for requests that name none. provider: auto, cpu, cuda or tensorrt.
    threads: of each graph, 0 = those that `specrt tune` found best, or one per physical core.

    tune: the first time a bundle is opened on a device with the drafter auto, and no threads asked
    for, measure what steps and drafts cost: a second for a small model, a few for one of 1.5B. It
    is kept in the bundle's profile/, and `specrt tune` replaces it. Without it, as where a bundle
    cannot be written to, auto learns as it goes. progress: told (stage, done, total) of that.

    Raises BundleError for a folder that is no whole bundle, ProviderError for a provider that is
    not there, RequestError for a drafter that the bundle lacks.
    """
    model = Model(Path(path), drafter=drafter, provider=provider, threads=threads)
    if tune and drafter == "auto" and not threads:
        model._tune(progress or quiet)
    return model


class Model:
    """A bundle in memory. Draft models are opened when first asked for."""

    def __init__(self, folder: Path, *, drafter: str, provider: str, threads: int) -> None:
        self.manifest: Manifest = read_manifest(folder)
        check_hashes(folder, self.manifest.files)
        self.tokenizer = load_tokenizer(folder / self.manifest.tokenizer.path)
        self._template = _read_template(folder, self.manifest)
        limit = real_ids(self.tokenizer, self.manifest.model.vocab)
        self._folder, self._provider = folder, choose(provider, self.manifest.flavour).provider
        known = profile.read(folder, self._provider)
        best = known.threads if known and not known.brief else physical_cores()
        self._threads = threads or best
        self._profile = known if known and known.threads == self._threads else None
        self._open = partial(
            _open, folder, self.manifest.flavour, provider=provider, threads=self._threads
        )
        self._drafters: dict[str, Drafter] = {}
        self._default = drafter
        self._held = Held(self._open("target", self.manifest.model), limit)
        self._drafter(drafter)  # a name the bundle lacks is refused now, not at the first request
        self._costs = self._known_costs()
        self._habits = Habits()
        self._policies: dict[str, Policy] = {}
        self._turn = threading.Lock()  # one generate at a time
        self._handover = threading.Lock()  # one change of the active stream at a time
        self._active: Stream | None = None

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters this bundle has; `a+b` combines, `auto` chooses."""
        return ("none", "auto", "ngram", *(info.name for info in self.manifest.drafters))

    def generate(self, prompt: Prompt | None = None, **options: Any) -> Result:
        """Write one text to its end; the arguments are those of `stream`."""
        return self.samples(prompt, 1, **options)[0]

    def samples(
        self, prompt: Prompt | None = None, n: int = 1, *, seed: int | None = None, **options: Any
    ) -> list[Result]:
        """Write n texts for one prompt, which is read once, with the seeds seed, seed + 1, …: each
        is what `generate` writes with its seed. The other arguments are those of `stream`."""
        if n < 1:
            raise RequestError(f"n must be 1 text or more, not {n}")
        first = fresh_seed() if seed is None else seed
        results = []
        with self._turn:
            for i in range(n):
                stream = self.stream(prompt, seed=first + i, **options)
                for _ in stream:
                    pass
                results.append(stream.result)
        return results

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        raw: bool = False,
        drafter: str | None = None,
        budget: int | None = None,
        policy: str | None = None,
        rule: str = COUPLED.name,
        max_tokens: int = 256,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        processed_logprobs: bool = False,
        traced: bool = False,
        regex: str | None = None,
        json_schema: Schema | None = None,
        **how: Unpack[How],
    ) -> Stream:
        """Write one text, a `Piece` at a time.

        prompt: the user's question, or with `raw` a text to continue, or token ids. messages: a
        conversation instead, [{"role": "user", "content": "…"}, …]. budget: how many tokens to
        draft in each step. policy: what chooses it instead, see runtime/policies.py; without
        either, "cost" for the drafter auto, and 4 tokens for one that is named. rule: of
        verification; under "coupled" the seed alone decides the text, whatever drafts. seed: of all
        draws, None takes a fresh one. stop: texts to end before. logprobs: report each token's, and
        those of so many best ones; the model's own, or with processed_logprobs after penalties and
        bans. traced: keep each step's detail. regex, json_schema: the form that the text must have.
        how: temperature (0 is greedy), top_k, top_p, penalties and the like, see `How`. Raises
        RequestError for what cannot be used.
        """
        name = self._default if drafter is None else drafter
        ids, chosen = self.prompt_ids(prompt, messages, raw), sampling(how, self.tokenizer)
        drafts = self._drafter(name)
        if regex is not None or json_schema is not None:
            grammar = self._forms.grammar(regex, json_schema, len(ids))
            chosen = constrained(chosen, grammar)
            if name != "none":
                drafts = First([Guided(part, grammar) for part in parts(drafts)])
        request = Request(
            prompt=ids,
            max_tokens=max_tokens,
            sampling=chosen,
            seed=fresh_seed() if seed is None else seed,
            stop=frozenset(self.manifest.model.eos_ids),
            logprobs=logprobs,
            traced=traced,
            rule=rule,
            processed_logprobs=processed_logprobs,
        )
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        text = TextStream(self.tokenizer, stops)
        stream = Stream(
            self._held, request, text, drafts, self._controller(name, budget, policy, ids), name
        )
        self._take_turn(stream)
        return stream

    @cached_property
    def _forms(self) -> Forms:
        return Forms(self.tokenizer, self._held.limit, self.manifest.model.eos_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that is continued as it stands."""
        return encode(self.tokenizer, text, add_bos=True)

    def prompt_ids(
        self, prompt: Prompt | None = None, messages: Messages | None = None, raw: bool = False
    ) -> tuple[int, ...]:
        """The token ids that `stream` gives to the model for these."""
        if (prompt is None) == (messages is None):
            raise RequestError("give either a prompt or messages")
        if prompt is not None and not isinstance(prompt, str):
            return tuple(int(token) for token in prompt)
        if prompt == "":
            raise RequestError("the prompt is empty: give a text to answer or to continue")
        if self._template is None or raw:
            if messages is not None:
                raise RequestError("this model has no chat template: give a prompt, not messages")
            return tuple(self.encode(prompt or ""))
        rendered = render(
            self._template,
            messages or [{"role": "user", "content": prompt}],
            bos=self._token_text(self.manifest.model.bos_id),
            eos=self._token_text(next(iter(self.manifest.model.eos_ids), None)),
        )
        return tuple(encode(self.tokenizer, rendered, add_bos=False))

    def _controller(
        self, name: str, budget: int | None, policy: str | None, prompt: Sequence[int]
    ) -> Controller:
        """What chooses the drafts of a text."""
        if budget is not None and policy is not None:
            raise RequestError(f"give a budget ({budget}) or a policy ({policy}), not both")
        if name == "auto" and (reason := plain_reason(self.manifest)):
            return Fixed(0, reason)
        if name == "none":
            return Fixed(0, "plain: no drafter")
        if policy is None and name == "auto" and budget is None:
            policy = COST
        if policy is None:
            return Fixed(AUTO_BUDGET if budget is None else budget)
        if policy not in self._policies:
            self._policies[policy] = policies.named(policy)
        memory = Memory(self._costs, self._habits, self._policies[policy])
        return Adaptive(self._parts(name), memory, prompt)

    def _tune(self, progress: Progress) -> None:
        """Measure this device in passing, where nothing is known of it, there is a choice, and what
        is found can be kept."""
        if self._profile or plain_reason(self.manifest) or not profile.can_keep(self._folder):
            return
        progress(MEASURING, 0, 1)
        self._profile = self._measure()
        self._costs = self._known_costs()
        profile.write(self._folder, self._profile)
        progress(MEASURING, 1, 1)

    def _measure(self) -> profile.Profile:
        """What this device costs, briefly measured now."""
        auto = zip(self._parts("auto"), parts(self._drafter("auto")), strict=True)
        costly = {name: drafter for name, drafter in auto if not is_free(drafter)}
        wanted = profile.key(self._folder, self._provider)
        self._held.read = ()
        return measure(self._held.session, costly, BRIEF, wanted, self._threads)

    def _known_costs(self) -> Costs:
        guesses = {info.name: self._guess(info) for info in self.manifest.drafters}
        return self._profile.costs(guesses) if self._profile else Costs(guesses)

    def _parts(self, name: str) -> list[str]:
        """The drafters that a name combines."""
        if name == "auto":
            return ["ngram", *(info.name for info in self.manifest.drafters)]
        return name.split("+")

    def _token_text(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.id_to_token(token) or ""

    def _drafter(self, name: str) -> Drafter:
        """The drafter called `name`, made once."""
        name = "+".join(self._parts(name))
        if name not in self._drafters:
            makers: dict[str, Callable[[], Drafter]] = {"none": Plain, "ngram": Ngram}
            for info in self.manifest.drafters:
                makers[info.name] = partial(self._draft_model, info)
            self._drafters[name] = named(name, makers)
        return self._drafters[name]

    def _guess(self, info: DrafterInfo) -> DraftCost:
        """What a draft model costs before it was measured: as its weights are to the target's."""
        target = sum(graph.size for graph in self.manifest.graphs)
        share = sum(graph.size for graph in info.graphs) / max(target, 1)
        return DraftCost(share, share * READ_SHARE)

    def _draft_model(self, info: DrafterInfo) -> Drafter:
        return DraftModel(self._open(info.path, info.model), self._held.limit, info.name)

    def _take_turn(self, stream: Stream) -> None:
        with self._handover:
            active = self._active
            if active is not None and not active.finished:
                if active.thread is not threading.current_thread() and active.thread.is_alive():
                    raise RequestError(
                        "another thread is streaming from this model; end that stream or load "
                        "another"
                    )
                active.close()
            self._active = stream


def _open(folder: Path, flavour: str, graph: str, model: ModelInfo, **where: Any) -> Session:
    return open_session(folder / graph / "model.onnx", model, flavour, **where)


def _read_template(folder: Path, manifest: Manifest) -> str | None:
    if manifest.chat_template is None:
        return None
    return (folder / manifest.chat_template.path).read_text(encoding="utf-8")
