"""A process that turns blocks of text into ids until its input ends.

Started by ``data/tokenize_pool.py`` with the path of a JSON file that describes the work. On standard input:
blocks, each as one part. On standard output: for each block the parts of its result. A part is its length
(8 bytes, little-endian) and its bytes. When the parent dies, the pipe ends and so does the worker.

Signals meant for the run are the parent's business: it ends its workers itself. Loads no torch, so that a
worker starts in a tenth of a second.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import Tokenizer

from protolith.data.tokenize_block import BlockOptions, pack, tokenize_block
from protolith.data.tokenizer import TextTokenizer


def write_job(folder: Path, tokenizer: TextTokenizer, options: BlockOptions) -> Path:
    """Describe the work in two files in ``folder``; returns the one to name to workers."""
    (folder / "job_tokenizer.json").write_text(tokenizer.backend.to_str(), encoding="utf-8")
    job = {
        "eos_id": tokenizer.eos_id,
        "eos_token": tokenizer.eos_token,
        "vocab_size": tokenizer.vocab_size,
        "max_id": tokenizer.max_id,
        "text_field": options.text_field,
        "eval_split": options.eval_split,
        "seed": options.seed,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def read_job(path: Path) -> tuple[TextTokenizer, BlockOptions]:
    job: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    tokenizer = TextTokenizer(
        backend=Tokenizer.from_file(str(path.with_name("job_tokenizer.json"))),
        name="",
        eos_id=job["eos_id"],
        eos_token=job["eos_token"],
        vocab_size=job["vocab_size"],
        max_id=job["max_id"],
        digest="",
        source_dir=None,
        notes=(),
    )
    return tokenizer, BlockOptions(job["text_field"], job["eval_split"], job["seed"])


def write_part(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)


def read_part(pipe: BinaryIO) -> bytes | None:
    """The next part; None when the pipe has ended."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    data = pipe.read(size)
    return data if len(data) == size else None


def main() -> None:
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    tokenizer, options = read_job(Path(sys.argv[1]))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (data := read_part(source)) is not None:
        for part in pack(tokenize_block(data, tokenizer, options)):
            write_part(target, part)
        target.flush()
