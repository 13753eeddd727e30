"""SentencePiece vocabularies: BPE by score (llama, mistral, phi3, gemma) and unigram (T5).

Words are told apart by "▁" in place of the space, and what the vocabulary lacks is spelt in bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specrt.export.tokenizer_fields import Kind, Vocabulary
from specrt.runtime.errors import SourceError

SPACE = "▁"


def sentencepiece_bpe(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of a SentencePiece BPE vocabulary, without its special tokens."""
    prefix = vocabulary.space_prefix
    if prefix is None:
        prefix = vocabulary.model == "llama"
    vocab = {text: i for i, text in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=list(vocabulary.merges) or merges_from_scores(vocab, _scores(vocabulary)),
            unk_token=None if vocabulary.unknown is None else vocabulary.tokens[vocabulary.unknown],
            fuse_unk=True,
            byte_fallback=Kind.BYTE in vocabulary.kinds,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefix)
    return tokenizer


def unigram(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of a unigram vocabulary, without its special tokens."""
    if vocabulary.unknown is None:
        raise SourceError("tokenizer.ggml.unknown_token_id is missing; a unigram model needs one")
    pieces = list(zip(vocabulary.tokens, _scores(vocabulary), strict=True))
    byte_fallback = Kind.BYTE in vocabulary.kinds
    tokenizer = Tokenizer(models.Unigram(pieces, vocabulary.unknown, byte_fallback))
    cleaning: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        cleaning.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.squeeze_spaces:
        cleaning.append(normalizers.Strip())
        cleaning.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(cleaning)
    scheme = "never" if vocabulary.space_prefix is False else "always"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme)
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies, best score first.

    Every way to put a token together from two others is a merge, ranked by the score of the whole.
    """
    found = []
    for text, i in vocab.items():
        for cut in range(1, len(text)):
            left, right = vocab.get(text[:cut]), vocab.get(text[cut:])
            if left is not None and right is not None:
                found.append((-scores[i], -cut, -len(text), left, right, text[:cut], text[cut:]))
    return [(left, right) for *_, left, right in sorted(found)]


def with_spaces_restored(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with "▁▁" where conversion wrote two spaces in what the user defined."""
    taken = frozenset(vocabulary.tokens)
    restored = (text.replace(" ", SPACE) for text in vocabulary.tokens)
    tokens = (
        new if kind == Kind.USER_DEFINED and new not in taken else old
        for old, new, kind in zip(vocabulary.tokens, restored, vocabulary.kinds, strict=True)
    )
    return replace(vocabulary, tokens=tuple(tokens))


def _scores(vocabulary: Vocabulary) -> list[float]:
    """Scores as SentencePiece has them: 0, the best, for what the user defined."""
    return [
        0.0 if kind == Kind.USER_DEFINED else score
        for kind, score in zip(vocabulary.kinds, vocabulary.scores, strict=True)
    ]
