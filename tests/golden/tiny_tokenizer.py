"""Tokenizers as small as their families allow, trained on a few lines.

`byte_level`: byte-level BPE cut by Qwen2's expression. `sentencepiece`: BPE over characters with
byte fallback; gemma's form puts no space before the first word. Both have a chat template.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "the cat sat on the hat and then the other cat sat there too",
    "in the end it is that",
    "a man ran and ran again in the rain on one more morning",
]
QWEN2_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n'"
    " + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
BYTE_SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PIECE_SPECIALS = ["<pad>", "</s>", "<s>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<image>"]


def byte_level(vocab: int) -> Tokenizer:
    """Specials, the 256 bytes, then merges up to `vocab`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_CUTS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=BYTE_SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentencepiece(vocab: int, prefix: bool) -> Tokenizer:
    """Specials, <0x00> to <0xFF>, then characters and merges up to `vocab`."""
    fixed = [*PIECE_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    draft = Tokenizer(models.BPE())
    draft.pre_tokenizer = pre_tokenizers.Metaspace()
    draft.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=vocab - len(fixed), show_progress=False)
    )
    learnt = json.loads(draft.to_str())["model"]
    ids = {piece: index for index, piece in enumerate([*fixed, *learnt["vocab"]])}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[tuple(merge) for merge in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in PIECE_SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", ids["<s>"])]
    )
    return tokenizer


def write_tokenizer(folder: Path, vocab: int, kind: str, *, apart: bool) -> None:
    """tokenizer.json and tokenizer_config.json. kind: byte_level, sentencepiece or gemma.

    apart: the chat template in a file of its own, as transformers 5 writes it.
    """
    if kind == "byte_level":
        tokenizer = byte_level(vocab)
        settings: dict[str, Any] = {
            "add_bos_token": False,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer",
            "chat_template": CHATML,
        }
    else:
        tokenizer = sentencepiece(vocab, prefix=kind == "sentencepiece")
        settings = {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "tokenizer_class": "GemmaTokenizer" if kind == "gemma" else "LlamaTokenizer",
            "chat_template": TURNS,
        }
    assert tokenizer.get_vocab_size() == vocab, (kind, tokenizer.get_vocab_size())
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    if apart:
        (folder / "chat_template.jinja").write_text(settings.pop("chat_template"), "utf-8")
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
