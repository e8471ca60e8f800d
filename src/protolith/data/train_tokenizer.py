"""A byte-level BPE tokenizer from a corpus, in a directory that transformers loads.

Comes in: paths of JSONL text (as for tokenizing) or an iterator of texts. Goes out: ``tokenizer.json`` and
``tokenizer_config.json``, and the tokenizer ready for use.

Byte level: the 256 bytes are always in the vocabulary, so any text can be written and comes back the same.
Two special tokens: ``<|endoftext|>`` (id 0) ends documents, ``<|pad|>`` (id 1) fills rows. Padding has a
token of its own because much fine-tuning code masks every pad id out of the loss: if that were the end of
text, later models would never learn to stop.

Deterministic: the same texts give the same files. Memory grows with the number of different words, not
with the text; the text is streamed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from protolith.data.files import find_files
from protolith.data.text import TEXT_SUFFIXES, Tally
from protolith.data.text_blocks import read_texts
from protolith.data.tokenizer import TOKENIZER_FILE, TextTokenizer, load_tokenizer
from protolith.errors import ConflictError, CorpusTooSmallError, TokenizerError, UsageError
from protolith.formats.rundir import from_os_error, write_json, write_text_atomic

EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"
_NUM_BYTES = 256
_LONGEST_CHARS = 1 << 14


def train_tokenizer(
    inputs: Sequence[str] | Iterator[str],
    vocab_size: int,
    output_dir: str | Path,
    *,
    text_field: str = "text",
    max_chars: int | None = None,
    overwrite: bool = False,
    poll: Callable[[], None] | None = None,
) -> TextTokenizer:
    """Train on text and write the tokenizer's directory.

    Args:
        inputs: a list or tuple of paths (files, folders, patterns), or an iterator of texts.
        vocab_size: entries wanted, the two special ones included; a small corpus may give fewer (a note).
        output_dir: made when missing. One that holds a tokenizer already needs ``overwrite``.
        max_chars: characters to learn from, at most; the rest is left unread, with a note.
        poll: called now and then while text is read; what it raises ends the work.

    Raises:
        UsageError: a vocabulary too small for all bytes. ConflictError: there is a tokenizer already.
        NotFoundError, BadRecordError, CorpusTooSmallError: the text. NoSpaceError, NotAllowedError: folder.
    """
    least = _NUM_BYTES + 2
    if vocab_size < least:
        raise UsageError(
            f"a vocabulary of {vocab_size} entries cannot hold the 256 bytes and 2 special tokens",
            where="vocab_size",
            hint=f"ask for at least {least}",
        )
    folder = Path(output_dir).expanduser()
    if (folder / TOKENIZER_FILE).exists() and not overwrite:
        raise ConflictError(
            "there is a tokenizer in this folder already",
            where=str(folder),
            hint="choose another folder, or say that it may be overwritten",
        )
    notes: list[str] = []
    tally = Tally()
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, Sequence):
        found = find_files(inputs, suffixes=TEXT_SUFFIXES, what="JSONL text")
        notes.extend(found.notes)
        texts: Iterable[str] = read_texts(found.files, text_field, tally=tally, poll=poll)
    else:
        texts = inputs
    feed = _Feed(texts, max_chars)
    backend = _train(feed, vocab_size)
    if not feed.num_documents:
        raise CorpusTooSmallError("there is no text to learn a tokenizer from")
    notes.extend(tally.notes())
    if feed.cut:
        notes.append(f"learned from the first {max_chars:,} characters only")
    if backend.get_vocab_size() < vocab_size:
        notes.append(
            f"the text gives only {backend.get_vocab_size():,} entries of the {vocab_size:,} asked for:"
            " no further pair of tokens occurs twice"
        )
    _write(backend, folder)
    trained = load_tokenizer(folder)
    return TextTokenizer(**{**trained.__dict__, "notes": (*notes, *trained.notes)})


class _Feed:
    """Texts for the trainer, counted. Very long ones are cut: to count words, not to write them."""

    def __init__(self, texts: Iterable[str], max_chars: int | None) -> None:
        self.num_documents = 0
        self.cut = False
        self._texts = texts
        self._chars_left = max_chars

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            if self._chars_left is not None:
                if self._chars_left <= 0:
                    self.cut = True
                    return
                self._chars_left -= len(text)
            self.num_documents += 1
            for start in range(0, len(text), _LONGEST_CHARS):
                yield text[start : start + _LONGEST_CHARS]


def _train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[EOS_TOKEN, PAD_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(iter(texts), trainer=trainer)
    if backend.token_to_id(EOS_TOKEN) is None:
        raise TokenizerError("the trainer left out the end-of-text token")
    return backend


def _write(backend: Tokenizer, folder: Path) -> None:
    """``tokenizer.json`` goes last: with it the folder counts as a tokenizer."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_text_atomic(folder / TOKENIZER_FILE, backend.to_str(pretty=True) + "\n")
