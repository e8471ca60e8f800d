"""Text to ids: one tokenizer, taken from ``tokenizer.json``, and the token that ends a document.

Comes in: a directory with ``tokenizer.json`` (and perhaps ``tokenizer_config.json``), or a loaded
transformers tokenizer. Goes out: ``TextTokenizer``: documents as lists of ids, each ended once.

Which token ends a document matters more than it seems: chat models name the end of a *turn* as their
``eos_token``, and a base model trained on turns' ends never learns where a text stops. So the order is:
what the user said; what the tokenizer says, unless that is a known end of turn; else a well-known end of
text in the vocabulary. Every guess is a note.

No special tokens are added except that one end. Truncation and padding that a ``tokenizer.json`` may carry
are switched off: they would cut documents in silence.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from protolith.data.long_text import LONG_CHARS, encode_long
from protolith.errors import NotFoundError, TokenizerError
from protolith.formats.rundir import write_json, write_text_atomic
from protolith.formats.shard_files import token_bytes_for

TOKENIZER_FILE = "tokenizer.json"
_TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)

#: Ends of text by name, the most telling first.
ENDS_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<EOS>",
    "[EOS]",
    "<|end|>",
)
#: Tokens that end a turn of a conversation, not a text.
ENDS_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<turn|>",
        "<|end|>",
    }
)


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer made ready for training text.

    Attributes:
        backend: the ``tokenizers.Tokenizer``; private to this value, nothing else changes it.
        name: short and portable: what shards' metadata say.
        eos_id, eos_token: what ends each document.
        vocab_size: entries, added tokens included.
        max_id: the highest id there is; ``vocab_size - 1`` unless the vocabulary has holes.
        digest: SHA-256 of everything that decides which ids a text becomes, the end token included.
        source_dir: where it was read from; None for one that was never a directory.
        notes: guesses and corrections, to be said once.
    """

    backend: Tokenizer = field(repr=False)
    name: str
    eos_id: int
    eos_token: str
    vocab_size: int
    max_id: int
    digest: str
    source_dir: Path | None
    notes: tuple[str, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes an id takes in a shard: 2 up to 65,536 entries, else 4."""
        return token_bytes_for(self.vocab_size, self.max_id)

    @property
    def unk_id(self) -> int | None:
        """What stands for text the vocabulary cannot spell; None when there is no such token."""
        token = getattr(self.backend.model, "unk_token", None)
        return None if token is None else self.backend.token_to_id(token)

    def encode_documents(
        self, texts: Sequence[str], poll: Callable[[], None] | None = None
    ) -> list[list[int]]:
        """Ids of each text, ended by one end token (none is added where the text already ends in it).

        ``poll`` is called between pieces of long texts; what it raises ends the work. Time is linear and
        memory about 200 bytes a character of ``LONG_CHARS``, also for a text of 60 MB.
        """
        documents: list[list[int]] = [[] for _ in texts]
        short = [at for at, text in enumerate(texts) if len(text) <= LONG_CHARS]
        encodings = self.backend.encode_batch_fast([texts[at] for at in short], add_special_tokens=False)
        for at, encoding in zip(short, encodings, strict=True):
            documents[at] = encoding.ids
        for at, text in enumerate(texts):
            if len(text) > LONG_CHARS:
                documents[at] = encode_long(self.backend, text, poll)
        for ids in documents:
            if not ids or ids[-1] != self.eos_id:
                ids.append(self.eos_id)
        return documents

    def encode(self, text: str) -> list[int]:
        """Ids of a text that goes on, such as a prompt: nothing is added."""
        return encode_long(self.backend, text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ids; ids the tokenizer does not know are left out."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def save(self, folder: Path) -> None:
        """Write what transformers needs to load this tokenizer: the files it came from, else its own form."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = [self.source_dir / name for name in _TOKENIZER_FILES] if self.source_dir else []
        for file in (file for file in kept if file.is_file()):
            write_text_atomic(folder / file.name, file.read_text(encoding="utf-8"))
        if not (folder / TOKENIZER_FILE).exists():
            write_text_atomic(folder / TOKENIZER_FILE, self.backend.to_str(pretty=True))
        if not (folder / "tokenizer_config.json").exists():
            settings = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": self.eos_token,
                "clean_up_tokenization_spaces": False,
            }
            write_json(folder / "tokenizer_config.json", settings)

    @staticmethod
    def from_transformers(tokenizer: Any, eos_token: str | None = None) -> TextTokenizer:
        """The same from a loaded transformers tokenizer, which is copied and never changed.

        Raises:
            TokenizerError: it is not a "fast" tokenizer, or has no end-of-text token.
        """
        source = getattr(tokenizer, "backend_tokenizer", None)
        if source is None:
            raise TokenizerError(
                f"{type(tokenizer).__name__} has no tokenizers backend",
                hint="load it with AutoTokenizer.from_pretrained(...)",
            )
        given = str(getattr(tokenizer, "name_or_path", "") or "")
        folder = Path(given) if given and (Path(given) / TOKENIZER_FILE).is_file() else None
        name = _name_of(folder) if folder else given or type(tokenizer).__name__
        declared = getattr(tokenizer, "eos_token", None)
        return _ready(Tokenizer.from_str(source.to_str()), name, folder, declared, eos_token, where=name)


def load_tokenizer(directory: str | Path, eos_token: str | None = None) -> TextTokenizer:
    """Read a tokenizer from a directory (or from a ``tokenizer.json`` named directly).

    Raises:
        NotFoundError: no such directory.
        TokenizerError: no ``tokenizer.json`` in it, a broken one, or no end-of-text token.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        folder = folder.parent if folder.name == TOKENIZER_FILE else folder
    if not folder.exists():
        raise NotFoundError("no such tokenizer directory", where=str(directory))
    file = folder / TOKENIZER_FILE if folder.is_dir() else folder
    if not file.is_file():
        raise TokenizerError(
            f"this directory has no {TOKENIZER_FILE}",
            where=str(directory),
            hint="save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(DIR),"
            " or train one: protolith tokenizer train",
        )
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exception for a broken file
        raise TokenizerError(f"not a tokenizer: {error}", where=str(file)) from error
    return _ready(backend, _name_of(folder), folder, _declared_eos(folder), eos_token, where=str(directory))


def _ready(
    backend: Tokenizer,
    name: str,
    folder: Path | None,
    declared: str | None,
    asked: str | None,
    *,
    where: str,
) -> TextTokenizer:
    notes = []
    if backend.truncation is not None:
        notes.append(
            f"the tokenizer would cut texts to {backend.truncation['max_length']} tokens: switched off"
        )
        backend.no_truncation()
    if backend.padding is not None:
        notes.append("the tokenizer would pad texts: switched off")
        backend.no_padding()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise TokenizerError("its vocabulary is empty", where=where)
    eos_token, eos_notes = _choose_eos(vocabulary, declared, asked, where)
    return TextTokenizer(
        backend=backend,
        name=name,
        eos_id=vocabulary[eos_token],
        eos_token=eos_token,
        vocab_size=len(vocabulary),
        max_id=max(vocabulary.values()),
        digest=_digest(backend, vocabulary[eos_token]),
        source_dir=folder.resolve() if folder else None,
        notes=(*notes, *eos_notes),
    )


def _choose_eos(
    vocabulary: dict[str, int], declared: str | None, asked: str | None, where: str
) -> tuple[str, list[str]]:
    """The token that ends a document, and what to say about the choice."""
    if asked is not None:
        if asked in vocabulary:
            return asked, []
        near = difflib.get_close_matches(asked, _special_looking(vocabulary), n=3)
        raise TokenizerError(
            f"data.eos_token {asked!r} is not in the tokenizer's vocabulary",
            where=where,
            hint=f"did you mean {' or '.join(map(repr, near))}?"
            if near
            else "name a token of this tokenizer",
        )
    known = next((token for token in ENDS_OF_TEXT if token in vocabulary and token != declared), None)
    if declared in vocabulary and declared not in ENDS_OF_TURN:
        return declared, []
    if declared in vocabulary and known is not None:
        return known, [
            f"documents end with {known!r}: the tokenizer's eos_token {declared!r} ends a turn of a"
            " conversation, not a text (data.eos_token chooses another)"
        ]
    if declared in vocabulary:
        return declared, [f"documents end with {declared!r}, the only end the tokenizer knows"]
    if known is not None:
        said = f"its eos_token {declared!r} is not in its vocabulary" if declared else "it names no eos_token"
        return known, [f"documents end with {known!r}: {said}, and this is a usual name for it"]
    raise TokenizerError(
        "the tokenizer has no end-of-text token, so documents would run together",
        where=where,
        hint="name one of its tokens with data.eos_token, or add eos_token to its tokenizer_config.json",
    )


def _special_looking(vocabulary: dict[str, int]) -> list[str]:
    return [token for token in vocabulary if len(token) > 2 and token[0] in "<[" and token[-1] in ">]"]


def _declared_eos(folder: Path) -> str | None:
    """``eos_token`` as the files beside ``tokenizer.json`` give it: a string, or an object with "content"."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
        except (ValueError, AttributeError, OSError) as error:
            raise TokenizerError(f"{name} cannot be read: {error}", where=str(file)) from error
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str) and token:
            return token
    return None


def _name_of(folder: Path) -> str:
    """The directory's name; ``org/name`` for a snapshot in a Hugging Face cache."""
    folder = folder.expanduser().resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name if folder.is_dir() else folder.stem


def _digest(backend: Tokenizer, eos_id: int) -> str:
    """Over the backend's own form, keys sorted, so that how a file was laid out does not matter."""
    content = json.loads(backend.to_str())
    for aside in ("version", "truncation", "padding", "post_processor"):
        content.pop(aside, None)
    text = json.dumps([content, eos_id], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
