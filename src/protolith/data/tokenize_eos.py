"""The token that ends documents, as chosen on a command line, and what deserves a look about the choice.

Comes in: a tokenizer's folder, perhaps a token. Goes out: ``TextTokenizer`` with notes in the words of the
command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protolith.data.tokenizer import ENDS_OF_TEXT, ENDS_OF_TURN, TextTokenizer, load_tokenizer
from protolith.errors import ProtolithError

WARNING = "warning: "


def choose_tokenizer(directory: str | Path, eos_token: str | None) -> TextTokenizer:
    """The tokenizer with the token that ends documents; notes say what was chosen, and those that begin with
    ``WARNING`` that the choice is suspicious."""
    tokenizer = load_tokenizer(directory, eos_token)
    notes = [note.replace("data.eos_token", "--eos-token") for note in tokenizer.notes]
    eos = tokenizer.eos_token
    added = tokenizer.backend.get_added_tokens_decoder().get(tokenizer.eos_id)
    if eos_token is not None and eos in ENDS_OF_TURN:
        vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
        better = next((token for token in ENDS_OF_TEXT if token in vocabulary and token != eos), None)
        advice = f"; {better!r} ends texts" if better else ""
        notes.append(f"{WARNING}--eos-token {eos!r} ends a turn of a conversation, not a text{advice}")
    if added is None or not added.special:
        notes.append(
            f"{WARNING}documents end with {eos!r}, which is no special token of this tokenizer: the same id"
            " may also come from plain text"
        )
    return TextTokenizer(**{**vars(tokenizer), "notes": tuple(notes)})


@contextmanager
def in_words_of_the_command() -> Iterator[None]:
    """Errors of the data layer name config keys; here they are options."""
    try:
        yield
    except ProtolithError as error:
        for key, option in (("data.eos_token", "--eos-token"), ("data.text_field", "--text-field")):
            error.message = error.message.replace(key, option)
            error.hint = error.hint.replace(key, option)
        raise
