"""Byte-level BPE: how each family of models cuts a text into words before merging.

A GGUF file names the family in tokenizer.ggml.pre and says no more. The cuts, and whether the
text is normalised first, are those of the family's own tokenizer.json.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specrt.export.tokenizer_fields import Vocabulary
from specrt.runtime.errors import SourceError

# Steps with names; every other step is a regular expression that isolates what it matches.
DIGIT, DIGITS, PUNCTUATION, WORDS = "<digit>", "<digits>", "<punctuation>", "<words>"


def _chars(ranges: str) -> str:
    """A class of characters by code point, safe from look-alikes: "61-7a b5" is a to z and µ."""
    spans = (span.split("-") for span in ranges.split())
    return "[" + "".join("-".join(chr(int(end, 16)) for end in span) for span in spans) + "]"


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_ENDINGS = _CASED % (_ENDINGS + "?", _ENDINGS + "?")
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_LLAMA3 = f"{_ENDINGS}|{_LETTERS}|\\p{{N}}{{1,3}}{_SYMBOLS}"
_QWEN2 = f"{_ENDINGS}|{_LETTERS}|\\p{{N}}{_SYMBOLS}"
_GPT4O = rf"{_CASED_ENDINGS}|\p{{N}}{{1,3}}{_PATHS}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _chars("4e00-9fa5 3040-309f 30a0-30ff") + "+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
_DEEPSEEK_LETTERS = _chars(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f "
    "386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd "
    "1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 "
    "1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 "
    "2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 "
    "2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 "
    "a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_HAN = _chars("4e00-9fa5 800-4e00 ac00-d7ff") + "+"
_BLOOM = r" ?[^(\s|[.,!?" + _chars("2026 3002 ff0c 3001 964 6d4 60c")[1:-1] + "])]+"


@dataclass(frozen=True, slots=True)
class Family:
    """steps cut the text, each the pieces of the one before; nfc composes it first.

    whole: a word that is a token is that token, whatever its merges say. bos: a text begins with
    the bos token unless the file says otherwise.
    """

    steps: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_BY_NAMES = {
    "gpt-2 phi-2 jais trillion granite-docling exaone4 gigachat mellum a.x-4.0 jina-es jina-de "
    "jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe": Family((WORDS,)),
    "mpt olmo modern-bert": Family((WORDS,), nfc=True),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": Family((DIGIT, WORDS)),
    "command-r": Family((DIGIT, WORDS), nfc=True),
    "falcon": Family((PUNCTUATION, WORDS, DIGITS, "[0-9][0-9][0-9]")),
    "default": Family((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Family(
        (_LLAMA3,), whole=True, bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": Family((_LLAMA3,)),
    "glm4 glm5": Family((_LLAMA3,), whole=True),
    "minicpm5": Family((r"\p{N}{1,3}", f"{_ENDINGS}|{_LETTERS}|\\p{{N}}+{_SYMBOLS}"), whole=True),
    "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo f2llmv2": Family((_QWEN2,), nfc=True),
    "grok-2 solar-open": Family((_QWEN2,)),
    "qwen35": Family(
        (
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES,
        ),
        nfc=True,
    ),
    "seed-coder": Family(
        (rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}",)
    ),
    "bailingmoe bailingmoe2 llada-moe": Family(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "jais-2": Family(
        (
            rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
            + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Family((_GPT4O,), whole=True),
    "tekken": Family((_CASED % ("", "") + rf"|\p{{N}}{_PATHS}",), whole=True, bos=True),
    "tiny_aya cohere2moe": Family((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "superbpe": Family((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "deepseek-llm": Family(
        (
            r"[\r\n]",
            r"\s?" + _DEEPSEEK_LETTERS + "+",
            r"\s?" + _chars("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002") + "+",
            r"\s+$",
            _HAN,
            DIGIT,
        )
    ),
    "deepseek-coder": Family((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, DIGIT)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Family(_DEEPSEEK3),
    "bloom poro-chat gpt3-finnish": Family((_BLOOM,)),
    "viking": Family((_BLOOM, DIGIT)),
}
FAMILIES = {name: family for names, family in _BY_NAMES.items() for name in names.split()}


def byte_level_bpe(vocabulary: Vocabulary, family: Family) -> Tokenizer:
    """The tokenizer of a byte-level BPE vocabulary, without its special tokens."""
    if not vocabulary.merges:
        raise SourceError("tokenizer.ggml.merges is empty or missing; re-convert the model")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(vocabulary.tokens)},
            merges=list(vocabulary.merges),
            ignore_merges=family.whole,
        )
    )
    if family.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_steps(family))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def family_of(pre: str) -> Family:
    """The family that a file names; an unknown one is refused, since a guess gives wrong ids."""
    if pre not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise SourceError(f"tokenizer.ggml.pre is {pre!r}, which is not supported; known: {known}")
    return FAMILIES[pre]


def _steps(family: Family) -> list[pre_tokenizers.PreTokenizer]:
    steps = [_step(step) for step in family.steps]
    if WORDS not in family.steps:  # WORDS writes bytes as letters itself, and only once
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return steps


def _step(step: str) -> pre_tokenizers.PreTokenizer:
    if step in (DIGIT, DIGITS):
        return pre_tokenizers.Digits(individual_digits=step == DIGIT)
    if step == PUNCTUATION:
        return pre_tokenizers.Punctuation("contiguous")
    if step == WORDS:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Split(Regex(step), "isolated")
