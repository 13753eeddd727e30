"""TextStream against decoding everything at once, stop strings against a search in all of it."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from specrt.runtime.errors import BundleError, RequestError
from specrt.runtime.text import TextStream, encode, load_tokenizer


def byte_level() -> Tokenizer:
    """256 bytes, "ab", " a" and half of an emoji as tokens, and a special one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    half = "ðŁ"  # the first two bytes of 🦙
    tokens = [*alphabet, "ab", "Ġa", half]
    merges = [("a", "b"), ("Ġ", "a"), ("ð", "Ł")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Words with "▁", bytes as "<0x41>", a leading space that decoding takes away."""
    words = ["▁", "▁a", "a", "b", "▁ab", "�", "中", "\n"]
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {name: i for i, name in enumerate(names)}
    model = models.BPE(
        vocab=vocab, merges=[("▁", "a"), ("▁a", "b")], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    tokens = ["<unk>", "▁", "▁a", "a", "b", "é"]
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], 0, False))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


TOKENIZERS = {"bytes": byte_level(), "sentencepiece": sentencepiece(), "metaspace": metaspace()}
BYTES, PIECES = TOKENIZERS["bytes"], TOKENIZERS["sentencepiece"]
LETTERS = [i for i in map(PIECES.token_to_id, ["▁a", "a", "b", "▁ab", "\n"]) if i is not None]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Tokenizer, list[list[int]]]:
    """A tokenizer and tokens of it, unknown ids among them, split into pushes."""
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    count = tokenizer.get_vocab_size()
    unknown = 0 if tokenizer is TOKENIZERS["metaspace"] else 2  # unigram can not decode these
    token = st.integers(0, count - 1 + unknown) | st.integers(max(0, count - 9), count - 1)
    return tokenizer, draw(st.lists(st.lists(token, max_size=5), max_size=12))


@given(run=runs())
def test_the_stream_gives_what_decoding_everything_gives(
    run: tuple[Tokenizer, list[list[int]]],
) -> None:
    tokenizer, pushes = run
    stream = TextStream(tokenizer)
    text = "".join([stream.push(tokens) for tokens in pushes] + [stream.finish()])
    tokens = [token for tokens in pushes for token in tokens]
    assert text == tokenizer.decode(tokens)
    assert stream.settled == len(tokens)


@given(run=runs(), stop=st.lists(st.text("ab \n�", min_size=1, max_size=4), max_size=3))
def test_the_text_does_not_depend_on_how_tokens_are_split_into_pushes(
    run: tuple[Tokenizer, list[list[int]]], stop: list[str]
) -> None:
    tokenizer, pushes = run
    tokens = [token for tokens in pushes for token in tokens]
    one, many = TextStream(tokenizer, stop), TextStream(tokenizer, stop)
    whole = one.push(tokens) + one.finish()
    assert "".join([*map(many.push, pushes), many.finish()]) == whole
    assert (many.stopped, many.settled) == (one.stopped, one.settled)


@given(
    tokens=st.lists(st.sampled_from(LETTERS), max_size=14),
    stop=st.lists(st.text("ab \n", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_the_text_ends_right_before_the_stop_string_that_is_complete_first(
    tokens: list[int], stop: list[str]
) -> None:
    stream = TextStream(PIECES, stop)
    shown = stream.push(tokens) + stream.finish()
    text = PIECES.decode(tokens)
    ends = [text.find(s) + len(s) for s in stop if s in text]
    if not ends:
        assert (shown, stream.stopped) == (text, None)
        return
    longest = max((s for s in stop if text[: min(ends)].endswith(s)), key=len)
    assert (shown, stream.stopped) == (text[: min(ends) - len(longest)], longest)


@given(
    tokens=st.lists(st.sampled_from(LETTERS), max_size=14),
    stop=st.lists(st.text("ab \n", min_size=1, max_size=5), max_size=3),
)
def test_settled_tokens_cover_the_text_shown_and_never_fall(
    tokens: list[int], stop: list[str]
) -> None:
    stream, shown, settled = TextStream(PIECES, stop), "", [0]
    for token in tokens:
        shown += stream.push([token])
        settled.append(stream.settled)
        assert PIECES.decode(tokens[: stream.settled]).startswith(shown)
    assert settled == sorted(settled)


@given(
    tokens=st.lists(st.sampled_from(LETTERS), max_size=14),
    stop=st.lists(st.text("ab \n", min_size=1, max_size=5), max_size=3),
)
def test_fragments_name_the_token_that_brought_their_text(
    tokens: list[int], stop: list[str]
) -> None:
    stream = TextStream(PIECES, stop)
    lengths = [0, *accumulate(len(part) for part in map(TextStream(PIECES).push, zip(tokens)))]
    at = 0
    for fragment in stream.fragments(tokens):
        assert lengths[fragment.token] <= at
        at += len(fragment.text)
        assert at <= lengths[fragment.token + 1]


def test_half_a_character_is_not_shown() -> None:
    llama = BYTES.encode("a🦙").ids
    stream = TextStream(BYTES)
    assert [stream.push([token]) for token in llama] == ["a", "", "", "🦙"]


def test_bytes_wait_for_the_end_of_their_run_since_one_bad_byte_spoils_it() -> None:
    good, bad, a = (PIECES.token_to_id(name) for name in ("<0x41>", "<0xFF>", "a"))
    stream = TextStream(PIECES)
    assert [stream.push([token]) for token in (good, a, good, bad, a)] == ["", "Aa", "", "", "��a"]


def test_a_token_that_shows_half_a_character_is_not_settled() -> None:
    stream = TextStream(BYTES)
    stream.push(BYTES.encode("a🦙").ids[:2])
    assert stream.settled == 1
    stream.finish()
    assert stream.settled == 2


def test_a_stop_string_that_begins_twice_is_found() -> None:
    stream = TextStream(BYTES, ["zzy"])
    pushed = [stream.push(BYTES.encode(letter).ids) for letter in "zzzy"]
    assert (pushed, stream.stopped) == (["", "", "z", ""], "zzy")


def test_of_stop_strings_complete_at_once_the_longest_counts() -> None:
    stream = TextStream(BYTES, ["y", "zy"])
    assert (stream.push(BYTES.encode("xzy").ids), stream.stopped) == ("x", "zy")


def test_what_may_begin_a_stop_string_waits_until_it_does_not() -> None:
    stream = TextStream(BYTES, ["\nUser:"])
    pushed = [stream.push([token]) for token in BYTES.encode("a\nUs.").ids]
    assert pushed == ["a", "", "", "", "\nUs."]


def test_a_stop_string_may_span_tokens_and_ends_inside_one() -> None:
    a, space_a, ab = (PIECES.token_to_id(name) for name in ("a", "▁a", "▁ab"))
    stream = TextStream(PIECES, ["a a"])
    assert stream.push([a, a]) == "a"
    assert stream.push([ab, space_a]) == ""
    assert (stream.stopped, stream.settled) == ("a a", 1)
    assert stream.finish() == ""


def test_after_a_stop_string_nothing_more_is_shown_or_settled() -> None:
    stream = TextStream(BYTES, ["b"])
    stream.push(BYTES.encode("aab").ids)
    settled = stream.settled
    assert (stream.push(BYTES.encode("zzz").ids), stream.finish()) == ("", "")
    assert stream.settled == settled


def test_a_stop_string_is_found_in_what_finish_lets_go() -> None:
    byte = PIECES.token_to_id("<0x41>")
    stream = TextStream(PIECES, ["A"])
    assert (stream.push([byte]), stream.finish(), stream.stopped) == ("", "", "A")


def test_a_token_that_ends_in_the_stop_string_is_kept_in_part() -> None:
    ab = PIECES.token_to_id("▁ab")
    stream = TextStream(PIECES, ["b"])
    assert (stream.push([ab]), stream.settled) == ("a", 1)


@pytest.mark.parametrize("stop", ["abc", ["a", ""]])
def test_stop_strings_that_are_no_list_of_texts_are_refused(stop: str | list[str]) -> None:
    with pytest.raises(RequestError, match="stop strings are"):
        TextStream(BYTES, stop)


def test_the_opening_of_a_text_is_added_once() -> None:
    a = PIECES.token_to_id("a")
    assert encode(PIECES, "a", add_bos=True) == [1, a]
    assert encode(PIECES, "<s>a", add_bos=True) == [1, a]
    assert encode(PIECES, "<s>a", add_bos=False) == [1, a]
    assert encode(PIECES, "a", add_bos=False) == [a]
    assert encode(PIECES, "", add_bos=True) == [1]


def test_a_tokenizer_that_opens_a_text_with_nothing_adds_nothing() -> None:
    assert encode(BYTES, "ab", add_bos=True) == encode(BYTES, "ab", add_bos=False)


def test_an_end_token_is_never_added_to_a_prompt() -> None:
    tokenizer = sentencepiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <s>", special_tokens=[("<s>", 1)]
    )
    assert encode(tokenizer, "a", add_bos=True) == [tokenizer.token_to_id("a")]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        encode(BYTES, b"a\xff".decode(errors="surrogateescape"), add_bos=True)


def test_a_loaded_tokenizer_neither_cuts_nor_pads(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    assert len(load_tokenizer(path).encode("zzzzz").ids) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"'])
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="is not a tokenizer") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")
