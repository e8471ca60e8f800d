"""``protolith tokenizer train``: a byte-level BPE tokenizer of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protolith.cli.render import Form, ShortFormOption, facts, print_json, say
from protolith.errors import ConflictError


def train(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="JSONL files, folders or patterns.")
    ],
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="Entries of the vocabulary.")],
    output: Annotated[Path, typer.Option("--output", help="Folder to write the tokenizer to.")],
    text_field: Annotated[
        str, typer.Option("--text-field", help="Field of a record that holds its text.")
    ] = "text",
    max_chars: Annotated[
        int | None, typer.Option("--max-chars", min=1, help="Learn from this many characters at most.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a tokenizer in that folder.")
    ] = False,
    form: ShortFormOption = Form.text,
) -> None:
    """Train a tokenizer on text and write a folder that transformers can load."""
    from protolith.data.train_tokenizer import train_tokenizer

    try:
        tokenizer = train_tokenizer(
            inputs, vocab_size, output, text_field=text_field, max_chars=max_chars, overwrite=overwrite
        )
    except ConflictError as error:
        error.hint = "choose another folder, or say --overwrite"
        raise
    for note in tokenizer.notes:
        say(f"note: {note}", error=True)
    answer = {
        "output": str(output),
        "vocab_size": tokenizer.vocab_size,
        "eos_token": tokenizer.eos_token,
        "eos_id": tokenizer.eos_id,
        "digest": tokenizer.digest,
    }
    if form is Form.json:
        print_json({**answer, "notes": list(tokenizer.notes)})
    else:
        facts(answer)
