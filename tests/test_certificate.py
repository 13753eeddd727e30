"""The certificate holds for a sound bundle and fails for each planted fault.

Whatever is wrong must fail a claim; which one is told where it can be only that one.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused
from variants import LLAMA, noisy, variant

import specrt
from specrt.bench.certificate import (
    GREEDY,
    PROCESSED,
    SEEDED,
    SIGMA,
    Finding,
    Plan,
    certify,
    document,
    graphs,
)
from specrt.bench.suite import Prompt
from specrt.export.build import export
from specrt.export.check import EXACT as SAME_BITS
from specrt.export.check import check_graph
from specrt.runtime import decode
from specrt.runtime.bundle import read_manifest, sha256
from specrt.runtime.cache import SharedCache
from specrt.runtime.distribution import Distribution, residual, scaled
from specrt.runtime.drafters import draft
from specrt.runtime.errors import RequestError
from specrt.runtime.prefix import common_prefix
from specrt.runtime.proposal import NOTHING, ROOT
from specrt.runtime.rules import EXACT, named
from specrt.runtime.scored import Move, Scored

TEXTS = ("the model the model", "one two one two one", "cats and dogs and cats")
PROMPTS = tuple(Prompt(str(i), "chat", text) for i, text in enumerate(TEXTS))
Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft is now right and now wrong."""
    made = tmp_path_factory.mktemp("certificate")
    drafts = [variant(made / "draft", noisy(0.1))]
    export(LLAMA, made / "b", drafts=drafts, weights="fp32", kernels="stock", check=False)
    return made / "b"


def failed(folder: Path, samples: int = 1) -> set[str]:
    """The claims that do not hold."""
    model = specrt.load(folder, provider="cpu", threads=1)
    findings = certify(model, Plan(PROMPTS, ("draft",), 24, samples=samples))
    return {f"{finding.subject}: {finding.claim}" for finding in findings if not finding.holds}


def test_a_sound_bundle_passes(folder: Path) -> None:
    assert failed(folder, samples=24) == set()


# Faults


def tokens_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    def follow(scored: Scored, node: int, chance: Any) -> Move:
        children = scored.proposal.children(node)
        return Move(tuple(children[:1]), None if children else scored.p(node))

    patch.setitem(EXACT, "coupled", replace(EXACT["coupled"], follow=follow))


def rows_are_one_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scored, "raw", lambda self, node: self.logits[max(node, 0)])


def rollback_keeps_an_entry(patch: pytest.MonkeyPatch) -> None:
    keep = SharedCache.keep

    def stale(self: SharedCache, length: int, path: Sequence[int] = ()) -> None:
        held = self.length
        keep(self, length, path)
        if 0 < self.length < held:
            self.length += 1

    patch.setattr(SharedCache, "keep", stale)


def the_bonus_is_the_best(patch: pytest.MonkeyPatch) -> None:
    verify = decode.verify

    def wrong(scored: Scored, *rest: Any) -> Any:
        verdict = verify(scored, *rest)
        if not verdict.path:
            return verdict
        return replace(verdict, bonus=int(scored.processed(verdict.path[-1]).argmax()))

    patch.setattr(decode, "verify", wrong)


def noise_is_of_the_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scored, "place", lambda self, node: len(self.tokens))


def penalties_are_of_another_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scored, "_text", lambda self, node: self.tokens)


def a_stop_inside_a_block_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    cut = decode.cut

    def wrong(block: Sequence[int], room: int, stop: frozenset[int]) -> Any:
        return cut(block, room, stop if block[-1] in stop else frozenset())

    patch.setattr(decode, "cut", wrong)


def the_drafts_cache_is_kept_too_long(patch: pytest.MonkeyPatch) -> None:
    def wrong(seen: Sequence[int], text: Sequence[int]) -> int:
        return min(common_prefix(seen, text) + 1, len(seen))

    patch.setattr(draft, "common_prefix", wrong)


def nothing_is_drafted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft.DraftModel, "propose", lambda *given: NOTHING)


def q_is_not_what_was_drawn_from(patch: pytest.MonkeyPatch) -> None:
    propose = draft.DraftModel.propose

    def wrong(*given: Any) -> Any:
        proposal = propose(*given)
        if proposal.probs is None:
            return proposal
        return replace(proposal, probs=tuple(scaled(q, q.probs**2) for q in proposal.probs))

    patch.setattr(draft.DraftModel, "propose", wrong)


def the_residual_is_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    def wrong(scored: Scored, node: int, chance: Any) -> Move:
        proposal, p = scored.proposal, scored.p(node)
        for child in proposal.children(node):
            q = proposal.law(child)
            token = int(proposal.tokens[child])
            if chance.accepts(p.of(token), q.of(token)):
                return Move((child,))
            p = residual(scored.p(ROOT if node == ROOT else proposal.path(node)[0] - 1), q)
        return Move((), p)

    patch.setitem(EXACT, "rejection", replace(EXACT["rejection"], follow=wrong))


def a_lossy_rule_under_an_exact_name(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(EXACT, "block", replace(EXACT["block"], follow=named("typical").follow))


def plain_decoding_is_too_cool(patch: pytest.MonkeyPatch) -> None:
    p = Scored.p
    cooled: Callable[[Distribution], Distribution] = lambda law: scaled(law, law.probs**1.5)  # noqa: E731
    patch.setattr(Scored, "p", lambda self, node: cooled(p(self, node)))


FAULTS: dict[Fault, set[str]] = {
    tokens_are_not_compared: {f"draft: {claim}" for claim in (GREEDY, SEEDED)},
    rows_are_one_off: {f"draft: {claim}" for claim in (GREEDY, SEEDED, PROCESSED)},
    rollback_keeps_an_entry: {f"draft: {GREEDY}"},
    the_bonus_is_the_best: {f"draft: {SEEDED}"},
    noise_is_of_the_step: {f"draft: {SEEDED}"},
    penalties_are_of_another_row: {f"draft: {PROCESSED}"},
    a_stop_inside_a_block_is_overlooked: {f"draft: {PROCESSED}"},
    the_drafts_cache_is_kept_too_long: {"draft: drafts"},
    nothing_is_drafted: {"draft: drafts"},
}
FAULTS_OF_LAWS: dict[Fault, str] = {
    q_is_not_what_was_drawn_from: "draft: law, rejection",
    the_residual_is_of_the_row_before: "draft: law, rejection",
    a_lossy_rule_under_an_exact_name: "draft: law, block",
    plain_decoding_is_too_cool: "plain: law, membership",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_fails_the_claim_it_breaks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    fault(monkeypatch)
    assert failed(folder) >= FAULTS[fault]


@pytest.mark.parametrize("fault", FAULTS_OF_LAWS, ids=lambda fault: fault.__name__)
def test_a_fault_of_a_law_fails_the_law(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    fault(monkeypatch)
    assert FAULTS_OF_LAWS[fault] in failed(folder, samples=24)


def test_plain_decoding_whose_law_is_wrong_fails_the_control(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_decoding_is_too_cool(monkeypatch)
    assert {"plain: law, coupled", "plain: law, membership"} <= failed(folder, samples=24)


def test_a_difference_is_told_with_its_place_its_tokens_and_their_gap(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_are_one_off(monkeypatch)
    model = specrt.load(folder, provider="cpu", threads=1)
    findings = certify(model, Plan(PROMPTS, ("draft",), 24, samples=1))
    greedy = next(finding for finding in findings if finding.claim == GREEDY and not finding.holds)
    monkeypatch.undo()
    ids, figures = model.prompt_ids(TEXTS[greedy.figures["prompt"]]), greedy.figures
    plain = model.generate(ids, drafter="none", max_tokens=24, logprobs=272)
    place = figures["position"]
    assert plain.tokens[place] == figures["plain"]
    chances = dict(plain.logprobs[place].top)
    gap = chances[figures["plain"]] - chances[figures["drafted"]]
    assert figures["gap"] == pytest.approx(gap, abs=1e-9)
    assert gap > 0
    assert f"differs at token {place + 1}: plain wrote {figures['plain']}" in greedy.words


@pytest.mark.parametrize("drafters", [("none",), ("",)])
def test_a_certificate_of_plain_decoding_is_refused(drafters: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="drafts nothing"):
        Plan(PROMPTS, drafters)


# Graphs

IDS = np.random.default_rng(2).integers(3, 270, 64).tolist()


def checked(folder: Path) -> list[Finding]:
    manifest = read_manifest(folder)
    return list(graphs(folder, manifest, "cpu", IDS, lambda s, ids: check_graph(s, ids, SAME_BITS)))


def test_sound_graphs_pass(folder: Path) -> None:
    found = [(finding.subject, finding.holds) for finding in checked(folder)]
    assert found == [("target", True), ("drafters/draft", True)]


def test_a_cache_that_keeps_too_much_fails_the_graphs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollback_keeps_an_entry(monkeypatch)
    assert [finding.holds for finding in checked(folder)] == [False, False]


# The command


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    lines = [json.dumps({"id": p.id, "kind": p.kind, "prompt": p.prompt * 3}) for p in PROMPTS]
    file.write_text("\n".join(lines))
    return file


def test_the_command_tells_each_claim_and_writes_the_certificate(
    specrt_run: Any, folder: Path, prompts: Path, tmp_path: Path
) -> None:
    file = tmp_path / "certificate.json"
    done = specrt_run(
        "verify", folder, "--drafter", "draft", "--prompts", prompts, "--tokens", 24, "--json", file
    )
    lines = done.out.splitlines()
    assert done.code == 0
    assert [line.split()[0] for line in lines] == ["holds"] * 10
    found = json.loads(file.read_text())
    assert (found["holds"], len(found["findings"])) == (True, 10)
    assert found["bundle"]["sha256"] == sha256(folder / "specrt.json")
    assert found["environment"]["specrt"] == specrt.__version__
    assert found["settings"]["drafters"] == ["draft"]
    assert max(f["figures"].get("sigma", 0) for f in found["findings"]) < SIGMA


def test_the_command_fails_with_exit_code_1(
    specrt_run: Any, folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens_are_not_compared(monkeypatch)
    done = specrt_run("verify", folder, "--drafter", "draft", "--prompts", prompts, "--json")
    assert done.code == 1
    assert json.loads(done.out)["holds"] is False
    assert "3 of 10 claims do not hold" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drafter", "none"], "'none' drafts nothing"),
        (["--drafter", "oracle"], "no drafter 'oracle'"),
        (["--tokens", "2"], "--tokens must be 8 or more"),
        (["--prompts", "none.jsonl"], "none.jsonl cannot be read"),
        (["--seed", "-1"], "seed must be 0 or more"),
        (["--tokens", "400"], "prompts and 400 tokens do not fit the context of 256"),
    ],
)
def test_bad_input_is_one_line(
    specrt_run: Any, folder: Path, options: list[str], message: str
) -> None:
    refused(specrt_run("verify", folder, *options), message)


def test_ones_own_prompts_must_all_fit(specrt_run: Any, folder: Path, prompts: Path) -> None:
    with prompts.open("a") as file:
        file.write('\n{"id": "long", "kind": "chat", "prompt": "%s"}' % ("word " * 200))
    done = specrt_run("verify", folder, "--prompts", prompts)
    refused(done, "1 of 4 prompts and 32 tokens do not fit the context of 256")


def test_weights_that_were_changed_are_refused(
    specrt_run: Any, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "b")
    with (tmp_path / "b" / "target" / "model.onnx.data").open("r+b") as file:
        file.write(b"x")
    refused(specrt_run("verify", tmp_path / "b"), "the file was changed, export again")


def test_a_certificate_knows_what_it_is_of(folder: Path) -> None:
    plan, manifest = Plan(PROMPTS, ("draft",)), read_manifest(folder)
    found = document(folder, manifest, plan, [Finding("draft", GREEDY, False, "")])
    assert (found["holds"], found["uneven"]) == (False, None)
    assert set(found["bundle"]["files"]) == {file.path for file in manifest.files}
