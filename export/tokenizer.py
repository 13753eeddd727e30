"""The tokenizer of a GGUF file, rebuilt as a tokenizers.Tokenizer with the ids of the original.

Where the original tokenizer.json and other readers of GGUF differ, the original is followed.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from specrt.export.tokenizer_bpe import byte_level_bpe, family_of
from specrt.export.tokenizer_fields import PREFIX, Kind, Vocabulary, read_vocabulary
from specrt.export.tokenizer_spm import sentencepiece_bpe, unigram, with_spaces_restored
from specrt.runtime.errors import SourceError

MODELS = ("gemma4", "gpt2", "llama", "t5")


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the tokenizer.ggml.* keys of a GGUF file describe.

    fields: plain Python values by key. SourceError if the model or the pre-tokenizer is not
    supported, or if the metadata contradict themselves.
    """
    model = fields.get(PREFIX + "model")
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise SourceError(f"{PREFIX}model is {model!r}, which is not supported; known: {known}")
    vocabulary = read_vocabulary(fields)
    try:
        return _build(vocabulary)
    except SourceError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise SourceError(f"the {model} vocabulary makes no tokenizer: {error}") from error


def _build(vocabulary: Vocabulary) -> Tokenizer:
    starts, ends = True, False
    if vocabulary.model == "gpt2":
        family = family_of(vocabulary.pre)
        starts = family.bos
        tokenizer = byte_level_bpe(vocabulary, family)
    elif vocabulary.model == "t5":
        starts, ends = False, True
        tokenizer = unigram(vocabulary)
    else:
        vocabulary = with_spaces_restored(vocabulary)
        tokenizer = sentencepiece_bpe(vocabulary)
    _add_special_tokens(tokenizer, vocabulary)
    _add_ends(
        tokenizer,
        vocabulary,
        starts if vocabulary.add_bos is None else vocabulary.add_bos,
        ends if vocabulary.add_eos is None else vocabulary.add_eos,
    )
    return tokenizer


def _add_special_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in a text before anything else is; control tokens are never shown."""
    special, shown = [], []
    strips = vocabulary.architecture == "phi3" and vocabulary.model == "llama"
    for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in (Kind.CONTROL, Kind.UNKNOWN):
            # Phi 3 drops white space after a marker; its GGUF files do not say so.
            rstrip = strips and text not in ("<unk>", "<s>", "<|endoftext|>")
            special.append(AddedToken(text, special=True, normalized=False, rstrip=rstrip))
        elif kind == Kind.USER_DEFINED:
            rstrip = strips and text == "</s>"
            shown.append(AddedToken(text, special=False, normalized=False, rstrip=rstrip))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(shown)


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, starts: bool, ends: bool) -> None:
    ids = {"bos": vocabulary.bos if starts else None, "eos": vocabulary.eos if ends else None}
    added = {name: i for name, i in ids.items() if i is not None}
    if added:  # by name, since a token's own text may mean something in a template
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[name for name in ("bos", "$A", "eos") if name in ("$A", *added)],
            special_tokens=[
                {"id": name, "ids": [i], "tokens": [vocabulary.tokens[i]]}
                for name, i in added.items()
            ],
        )
