"""Tokenizers of GGUF metadata against the originals: their recorded steps, SentencePiece's rule."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from specrt.export.tokenizer import tokenizer_from_gguf
from specrt.export.tokenizer_bpe import FAMILIES
from specrt.runtime.errors import SourceError

GOLDEN = Path(__file__).parent / "golden" / "tokenizers"
CORPUS = json.loads((GOLDEN / "corpus.json").read_text(encoding="utf-8"))
TEXTS: list[str] = CORPUS["texts"] + CORPUS["marks"]
ORIGINALS = json.loads((GOLDEN / "originals.json").read_text(encoding="utf-8"))
BYTE_LEVEL = ("qwen2", "llama-bpe", "gpt-4o", "deepseek-v3", "gpt-2", "smollm")
SMOLLM2 = Path.home() / ".cache/specrt/models/SmolLM2-135M-Instruct.Q4_1.gguf"
P = "tokenizer.ggml."
ANY_TEXT = st.text(max_size=60) | st.text(" \t\n'sStTrReE019.-aéß中🦙▁", max_size=60)

Fields = dict[str, Any]


def original(family: str) -> Tokenizer:
    """A byte-level BPE of 500 tokens, trained and cut as the family's own tokenizer.json does."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=family in ("llama-bpe", "gpt-4o")))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digit = pre_tokenizers.Digits(individual_digits=True)
    if family in ORIGINALS:
        state = json.loads(tokenizer.to_str()) | ORIGINALS[family]
        state.pop("ignore_merges")
        state["model"]["ignore_merges"] = ORIGINALS[family]["ignore_merges"]
        tokenizer = Tokenizer.from_str(json.dumps(state))
    else:
        steps = [words] if family == "gpt-2" else [digit, words]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(CORPUS["texts"] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def byte_level_fields(tokenizer: Tokenizer, pre: str) -> Fields:
    """What the usual converter writes of a byte-level tokenizer, padding included."""
    state = json.loads(tokenizer.to_str())
    added = {entry["id"]: entry["special"] for entry in state["added_tokens"]}
    count = tokenizer.get_vocab_size()
    kinds = [{None: 1, True: 3, False: 4}[added.get(i)] for i in range(count)]
    return {
        P + "model": "gpt2",
        P + "pre": pre,
        P + "tokens": [tokenizer.id_to_token(i) for i in range(count)] + ["[PAD501]", "[PAD502]"],
        P + "token_type": [*kinds, 5, 5],
        P + "merges": [" ".join(pair) for pair in state["model"]["merges"]],
        P + "eos_token_id": 0,
        P + "add_bos_token": False,
    }


@pytest.fixture(scope="module")
def families() -> dict[str, tuple[Tokenizer, Tokenizer]]:
    """By family: the original, and what is rebuilt from its GGUF metadata."""
    made = {}
    for family in BYTE_LEVEL:
        first = original(family)
        made[family] = first, tokenizer_from_gguf(byte_level_fields(first, family))
    return made


def ids(tokenizer: Tokenizer, text: str, special: bool = False) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=special).ids
    return found


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_a_rebuilt_byte_level_tokenizer_gives_the_ids_and_texts_of_the_original(
    families: dict[str, tuple[Tokenizer, Tokenizer]], family: str
) -> None:
    first, rebuilt = families[family]
    for text in TEXTS:
        assert ids(rebuilt, text) == ids(first, text)
        assert rebuilt.decode(ids(first, text)) == first.decode(ids(first, text))


@given(text=ANY_TEXT, family=st.sampled_from(BYTE_LEVEL))
def test_a_rebuilt_byte_level_tokenizer_agrees_with_the_original_on_any_text(
    families: dict[str, tuple[Tokenizer, Tokenizer]], text: str, family: str
) -> None:
    first, rebuilt = families[family]
    assert ids(rebuilt, text) == ids(first, text)


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_padding_of_the_vocabulary_is_not_part_of_the_tokenizer(
    families: dict[str, tuple[Tokenizer, Tokenizer]], family: str
) -> None:
    first, rebuilt = families[family]
    assert rebuilt.get_vocab() == first.get_vocab()


@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs `specrt pull smollm2`")
def test_smollm2_gives_the_recorded_ids() -> None:
    reader = gguf.GGUFReader(SMOLLM2)
    tokenizer = tokenizer_from_gguf({name: f.contents() for name, f in reader.fields.items()})
    assert [ids(tokenizer, text) for text in TEXTS] == json.loads(
        (GOLDEN / "smollm2.json").read_text()
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_cuts_a_text_into_pieces_that_make_it_up(name: str) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields = {
        P + "model": "gpt2",
        P + "pre": name,
        P + "tokens": [*alphabet, "ab"],
        P + "merges": ["a b"],
    }
    tokenizer = tokenizer_from_gguf(fields)
    for text in CORPUS["texts"]:
        whole = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        assert tokenizer.decode(ids(tokenizer, text)) == whole


# SentencePiece -----------------------------------------------------------------------------------


def sentencepiece_fields(prefix: bool = True) -> Fields:
    """A SentencePiece vocabulary as converters write it: markers, 256 bytes, words by score."""
    corpus = ["▁" + text.replace(" ", "▁") for text in CORPUS["texts"]]
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=90)
    )
    words = sorted(trained.get_vocab(), key=trained.token_to_id)
    words = sorted(words, key=lambda word: len(word) == 1)  # as SentencePiece has them
    markers = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * 3 + [0.0] * 256 + [-float(i) for i in range(len(words))]
    return {
        P + "model": "llama",
        P + "tokens": [*markers, *words],
        P + "scores": scores,
        P + "token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        P + "add_space_prefix": prefix,
        P + "unknown_token_id": 0,
    }


def by_the_rule(fields: Fields) -> Callable[[str], list[int]]:
    """SentencePiece's own rule: join the neighbours that make the best-scored token, leftmost
    first, until none do; spell the rest in bytes."""
    vocab = {text: i for i, text in enumerate(fields[P + "tokens"])}
    scores = fields[P + "scores"]

    def encode(text: str) -> list[int]:
        symbols = list(("▁" + text if text else "").replace(" ", "▁"))
        while pairs := [
            (-scores[vocab[left + right]], i)
            for i, (left, right) in enumerate(pairwise(symbols))
            if left + right in vocab
        ]:
            _, i = min(pairs)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        found = []
        for symbol in symbols:
            spelt = [f"<0x{byte:02X}>" for byte in symbol.encode()]
            found += [vocab[name] for name in ([symbol] if symbol in vocab else spelt)]
        return found

    return encode


@pytest.fixture(scope="module")
def sentencepiece() -> tuple[Tokenizer, Callable[[str], list[int]]]:
    fields = sentencepiece_fields()
    return tokenizer_from_gguf(fields), by_the_rule(fields)


def test_sentencepiece_ids_follow_the_rule_of_sentencepiece(
    sentencepiece: tuple[Tokenizer, Callable[[str], list[int]]],
) -> None:
    tokenizer, encode = sentencepiece
    for text in CORPUS["texts"]:
        assert ids(tokenizer, text) == encode(text)


@given(text=ANY_TEXT)
def test_sentencepiece_ids_follow_the_rule_on_any_text_and_decode_to_it(
    sentencepiece: tuple[Tokenizer, Callable[[str], list[int]]], text: str
) -> None:
    tokenizer, encode = sentencepiece
    assert ids(tokenizer, text) == encode(text)
    assert tokenizer.decode(encode(text)) == text.replace("▁", " ")


def test_a_vocabulary_without_space_prefix_adds_and_strips_none() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_fields(prefix=False))
    assert tokenizer.decode(ids(tokenizer, " a b")) == " a b"
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["a"]


def test_sentencepiece_text_begins_with_bos_unless_the_file_says_otherwise() -> None:
    fields = sentencepiece_fields()
    assert ids(tokenizer_from_gguf(fields), "", special=True) == [1]
    ends = fields | {P + "add_bos_token": False, P + "add_eos_token": True}
    assert ids(tokenizer_from_gguf(ends), "", special=True) == [2]


def test_space_runs_that_a_converter_wrote_as_spaces_are_tokens_of_the_text() -> None:
    fields = sentencepiece_fields(prefix=False)
    fields[P + "tokens"] = [*fields[P + "tokens"], " " * 37]
    fields[P + "scores"] = [*fields[P + "scores"], -1000.0]
    fields[P + "token_type"] = [*fields[P + "token_type"], 4]
    tokenizer = tokenizer_from_gguf(fields)
    assert tokenizer.id_to_token(len(fields[P + "tokens"]) - 1) == "▁" * 37
    assert tokenizer.decode(ids(tokenizer, " " * 40)) == " " * 40


def test_phi3_markers_take_the_white_space_after_them() -> None:
    fields = sentencepiece_fields() | {"general.architecture": "phi3"}
    fields[P + "tokens"] = [*fields[P + "tokens"], "<|user|>"]
    fields[P + "scores"] = [*fields[P + "scores"], 0.0]
    fields[P + "token_type"] = [*fields[P + "token_type"], 3]
    tokenizer = tokenizer_from_gguf(fields)
    assert ids(tokenizer, "<|user|>\n a") == ids(tokenizer, "<|user|>a")
    assert ids(tokenizer, "<s>\n a") != ids(tokenizer, "<s>a")


def test_a_unigram_vocabulary_gives_the_ids_and_texts_of_the_original() -> None:
    first = Tokenizer(models.Unigram())
    first.pre_tokenizer = pre_tokenizers.Metaspace()
    first.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
    )
    first.train_from_iterator([text for text in CORPUS["texts"] if text.isascii()] * 3, trainer)
    pieces = json.loads(first.to_str())["model"]["vocab"]
    fields = {
        P + "model": "t5",
        P + "tokens": [text for text, _ in pieces],
        P + "scores": [score for _, score in pieces],
        P + "token_type": [3, 3, 2, *[1] * (len(pieces) - 3)],
    }
    rebuilt = tokenizer_from_gguf(fields)
    for text in TEXTS:
        assert ids(rebuilt, text) == ids(first, text)
        assert rebuilt.decode(ids(first, text)) == first.decode(ids(first, text))
    assert ids(rebuilt, "", special=True) == [1]


# Metadata ----------------------------------------------------------------------------------------


def small(**changes: Any) -> Fields:
    """Five tokens; changes by the last part of the key, None takes it away."""
    fields: Fields = {
        P + "model": "gpt2",
        P + "pre": "llama-bpe",
        P + "tokens": ["<s>", "a", "b", "ab", "</s>"],
        P + "token_type": [3, 1, 1, 1, 3],
        P + "merges": ["a b"],
        P + "bos_token_id": 0,
        P + "eos_token_id": 4,
    }
    fields |= {P + name: value for name, value in changes.items()}
    return {key: value for key, value in fields.items() if value is not None}


def test_special_tokens_are_found_in_text_and_not_shown() -> None:
    tokenizer = tokenizer_from_gguf(small())
    assert ids(tokenizer, "ab</s>ab") == [3, 4, 3]
    assert tokenizer.decode([3, 4, 3]) == "abab"


def test_tokens_the_user_defined_are_found_in_text_and_shown() -> None:
    tokenizer = tokenizer_from_gguf(small(token_type=[3, 1, 1, 1, 4]))
    assert tokenizer.decode(ids(tokenizer, "ab</s>")) == "ab</s>"


def test_an_eos_that_the_file_calls_normal_is_a_special_token() -> None:
    tokenizer = tokenizer_from_gguf(small(token_type=[3, 1, 1, 1, 1]))
    assert tokenizer.decode(ids(tokenizer, "ab</s>")) == "ab"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0, 3]),
        ({"add_bos_token": False}, [3]),
        ({"add_eos_token": True}, [0, 3, 4]),
        ({"pre": "qwen2"}, [3]),
        ({"pre": "qwen2", "add_bos_token": True}, [0, 3]),
        ({"tokens": ["$A:1", "a", "b", "ab", "</s>"]}, [0, 3]),
    ],
)
def test_the_ends_of_a_text_are_those_of_the_file_or_else_of_its_family(
    changes: Fields, expected: list[int]
) -> None:
    assert ids(tokenizer_from_gguf(small(**changes)), "ab", special=True) == expected


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", [4]), ("qwen2", [2, 1])])
def test_a_word_that_no_merge_makes_is_one_token_in_families_that_look_it_up(
    pre: str, expected: list[int]
) -> None:
    tokenizer = tokenizer_from_gguf(
        small(pre=pre, tokens=["<s>", "a", "b", "ab", "ba"], token_type=[3, 1, 1, 1, 1])
    )
    assert ids(tokenizer, "ba") == expected


@pytest.mark.parametrize("text", ["ab", ""])
def test_a_text_met_twice_or_empty_keeps_its_id_and_is_never_encoded_to(text: str) -> None:
    tokens = ["<s>", "a", "b", "ab", text, "</s>"]
    changed = small(tokens=tokens, token_type=[3, 1, 1, 1, 1, 3], eos_token_id=5)
    tokenizer = tokenizer_from_gguf(changed)
    assert ids(tokenizer, "ab</s>") == [3, 5]
    assert tokenizer.id_to_token(4) == "[UNREACHABLE 4]"


def test_a_saved_tokenizer_is_the_same_when_loaded() -> None:
    tokenizer = tokenizer_from_gguf(small(tokens=["<s>", "a", "b", "ab", ""]))
    loaded = Tokenizer.from_str(tokenizer.to_str())
    assert ids(loaded, "ab<s>a", special=True) == ids(tokenizer, "ab<s>a", special=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "model is 'rwkv', which is not supported; known: gemma4, gpt2"),
        ({"model": None}, "model is None"),
        ({"pre": "kimi-k2"}, "pre is 'kimi-k2', which is not supported; known: a.x-4.0, bailing"),
        ({"pre": 3}, "pre is 3, not a str"),
        ({"tokens": None}, "tokens is empty or missing"),
        ({"tokens": "abc"}, "tokens is 'abc', not a list"),
        ({"tokens": ["<s>", "a", "b", 7, "</s>"]}, r"tokens\[3\] is 7, not a text"),
        ({"tokens": ["<s>", "a", "b", "ab", "\ud800"]}, "tokens is not valid UTF-8"),
        ({"tokens": ["<s>", "a", "b", "ab", "x" * 3000]}, r"tokens\[4\] has 3000 letters"),
        ({"token_type": [3, 1]}, "token_type has 2 entries, tokens has 5"),
        ({"token_type": [3, 1, 1, 1, 9]}, "9 is not a valid Kind"),
        ({"token_type": [3, 1, 1, 1, "x"]}, "'x' is not a valid Kind"),
        ({"scores": [0.0]}, "scores has 1 entries, tokens has 5"),
        ({"scores": [0.0] * 4 + [float("nan")]}, r"scores\[4\] is nan, not a number"),
        ({"scores": [0.0] * 4 + ["x"]}, r"scores\[4\] is 'x', not a number"),
        ({"merges": None}, "merges is empty or missing"),
        ({"merges": ["a c"]}, r"merges\[0\] is 'a c', which names no tokens"),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab', which names no tokens"),
        ({"merges": [b"a b"]}, r"merges\[0\] is b'a b', not a text"),
        ({"eos_token_id": 5}, "eos_token_id is 5, but there are 5 tokens"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"bos_token_id": "0"}, "bos_token_id is '0', not a int"),
        ({"add_bos_token": 1}, "add_bos_token is 1, not a bool"),
        ({"model": "t5", "unknown_token_id": 1, "precompiled_charsmap": [1, 2]}, "makes no"),
        ({"model": "t5", "precompiled_charsmap": ["x"]}, "precompiled_charsmap is not a list of b"),
    ],
)
def test_metadata_that_contradict_themselves_are_refused_in_one_line(
    changes: Fields, message: str
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        tokenizer_from_gguf(small(**changes))
    assert "\n" not in str(caught.value)


SCRAPS = st.sampled_from(["a", "b", "ab", "<s>", "<unk>", "$A", "▁", " ", "<0x00>", "", "[PAD3]"])
VALUES = st.none() | st.integers(-2, 9) | st.floats() | st.text(max_size=3) | st.lists(SCRAPS)


@given(
    model=st.sampled_from(["gpt2", "llama", "t5", "gemma4"]),
    tokens=st.lists(SCRAPS, min_size=1, max_size=9),
    merges=st.lists(st.sampled_from(["a b", "a a", " a", "ab"]), max_size=2),
    kinds=st.lists(st.integers(1, 6), min_size=9, max_size=9),
    changes=st.dictionaries(st.sampled_from(["scores", "bos_token_id", "pre", "merges"]), VALUES),
)
def test_any_metadata_make_a_tokenizer_or_a_source_error(
    model: str, tokens: list[str], merges: list[str], kinds: list[int], changes: Fields
) -> None:
    fields = small(model=model, tokens=tokens, merges=merges, token_type=kinds[: len(tokens)])
    fields |= {P + "unknown_token_id": 0, P + "eos_token_id": 0}
    fields |= {P + name: value for name, value in changes.items()}
    try:
        tokenizer = tokenizer_from_gguf(fields)
    except SourceError:
        return
    tokenizer.decode(tokenizer.encode("ab <s> é").ids)
