"""Small corpora and tokenizers, made new for each test that asks."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from protolith.data.files import DataFile, find_files
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.data.train_tokenizer import train_tokenizer

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def words() -> list[str]:
    """Fifty words, always the same."""
    chance = random.Random(0)
    return ["".join(chance.choices(_LETTERS, k=chance.randint(2, 9))) for _ in range(50)]


def document(number: int) -> str:
    """``docNNNN`` and 5 to 200 words of the fifty."""
    chance = random.Random(number)
    return " ".join([f"doc{number:04d}", *chance.choices(words(), k=chance.randint(5, 200))])


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    """One record a line; a plain string becomes ``{"text": string}``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": record} if isinstance(record, str) else record for record in records]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def text_files(*paths: Path) -> tuple[DataFile, ...]:
    return find_files([str(path) for path in paths], suffixes=TEXT_SUFFIXES, what="text").files


@cache
def _tokenizer_json() -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer(iter([document(n) for n in range(60)]), 400, folder)
        return tuple(  # type: ignore[return-value]
            Path(folder, name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")
        )


def bpe_dir(folder: Path) -> Path:
    """A directory with a byte-level BPE of 400 entries trained on the words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(("tokenizer.json", "tokenizer_config.json"), _tokenizer_json(), strict=True):
        (folder / name).write_text(text)
    return folder


def bpe(folder: Path) -> TextTokenizer:
    return load_tokenizer(bpe_dir(folder))


def word_level_dir(folder: Path, num_words: int, eos: str = "</s>") -> Path:
    """A hand-made tokenizer: ``w0``, ``w1`` ... by id, one special end at 0."""
    vocabulary = {eos: 0, "<unk>": 1, **{f"w{n}": n for n in range(2, num_words)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([eos])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def metaspace_dir(folder: Path) -> Path:
    """A BPE in the manner of SentencePiece: spaces are letters, one is put before each text."""
    pieces = ["</s>", "<unk>", "▁", *_LETTERS, *"0123456789"]
    merges = [("▁", letter) for letter in _LETTERS] + [("t", "h"), ("th", "e"), ("▁", "the"), ("e", "r")]
    vocabulary = {piece: n for n, piece in enumerate([*pieces, *dict.fromkeys(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return folder
