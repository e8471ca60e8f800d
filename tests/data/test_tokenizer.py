"""Which token ends a document, that nothing else is added, and that long texts are cut without a trace."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from protolith.data.long_text import encode_long, pieces
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.errors import NotFoundError, TokenizerError
from tests.data.corpora import bpe, bpe_dir, document, metaspace_dir, word_level_dir


def word_level(folder: Path, tokens: list[str], eos: object = None) -> Path:
    backend = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token=tokens[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if eos is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder


def test_every_document_ends_once(tmp_path: Path) -> None:
    """A text that already ends in the end token gets no second one (T8)."""
    tokenizer = bpe(tmp_path)
    plain, ended, empty = tokenizer.encode_documents(["a word", "a word<|endoftext|>", ""])
    assert plain == ended
    assert plain.count(tokenizer.eos_id) == 1
    assert plain[-1] == tokenizer.eos_id
    assert empty == [tokenizer.eos_id]
    assert tokenizer.encode("a word") == plain[:-1]


def test_the_declared_end_is_used_without_a_note(tmp_path: Path) -> None:
    for eos in ("stop", {"content": "stop"}):
        tokenizer = load_tokenizer(word_level(tmp_path / "t", ["<unk>", "a", "</s>", "stop"], eos))
        assert (tokenizer.eos_token, tokenizer.eos_id, tokenizer.notes) == ("stop", 3, ())


@pytest.mark.parametrize(
    ("tokens", "declared", "expected"),
    [
        (["u", "<|im_end|>", "<|endoftext|>"], "<|im_end|>", "<|endoftext|>"),
        (["u", "<|end_of_text|>", "<|eot_id|>"], "<|eot_id|>", "<|end_of_text|>"),
        (["u", "<eos>", "<end_of_turn>"], "<eos>", "<eos>"),
        (["u", "<|im_end|>"], "<|im_end|>", "<|im_end|>"),
    ],
)
def test_the_end_of_a_turn_is_not_the_end_of_a_text(
    tmp_path: Path, tokens: list[str], declared: str, expected: str
) -> None:
    tokenizer = load_tokenizer(word_level(tmp_path, tokens, declared))
    assert tokenizer.eos_token == expected
    assert bool(tokenizer.notes) == (declared.startswith(("<|im", "<|eot")))


@pytest.mark.parametrize("name", ["</s>", "<|endoftext|>", "[EOS]", "<eos>"])
def test_without_a_config_a_usual_name_is_found_and_said(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(word_level(tmp_path, ["<unk>", "a", name]))
    assert tokenizer.eos_token == name
    assert name in tokenizer.notes[0]


def test_no_end_token_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(word_level(tmp_path, ["<unk>", "a"]))
    assert "data.eos_token" in caught.value.hint


def test_the_user_chooses_the_end_token(tmp_path: Path) -> None:
    folder = word_level(tmp_path, ["<unk>", "<|end_text|>", "</s>"])
    assert load_tokenizer(folder, eos_token="<|end_text|>").eos_id == 1
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(folder, eos_token="<|end_txt|>")
    assert "did you mean '<|end_text|>'" in caught.value.hint


def test_missing_and_broken_directories(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    word_level(tmp_path, ["a", "</s>"])
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_saved_truncation_padding_and_templates_change_nothing(tmp_path: Path) -> None:
    folder = bpe_dir(tmp_path / "a")
    plain = load_tokenizer(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    backend.post_processor = processors.TemplateProcessing(
        single="<|pad|> $A <|endoftext|>", special_tokens=[("<|pad|>", 1), ("<|endoftext|>", 0)]
    )
    backend.save(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    text = document(3)
    assert loaded.encode_documents([text]) == plain.encode_documents([text])
    assert len(loaded.notes) == 2
    assert loaded.digest == plain.digest


def test_a_loaded_transformers_tokenizer_is_the_same_and_stays_unchanged(tmp_path: Path) -> None:
    direct = bpe(tmp_path)
    source = AutoTokenizer.from_pretrained(tmp_path)
    before = source.backend_tokenizer.to_str()
    ours = TextTokenizer.from_transformers(source)
    assert (ours.eos_id, ours.vocab_size, ours.max_id) == (direct.eos_id, direct.vocab_size, direct.max_id)
    assert ours.digest == direct.digest
    assert ours.name == direct.name
    assert ours.encode_documents([document(1)]) == direct.encode_documents([document(1)])
    assert source.backend_tokenizer.to_str() == before
    with pytest.raises(TokenizerError):
        TextTokenizer.from_transformers(object())


def test_the_digest_tells_what_changes_ids(tmp_path: Path) -> None:
    folder = word_level(tmp_path, ["<unk>", "a", "</s>", "<eos>"])
    first = load_tokenizer(folder)
    assert load_tokenizer(folder, eos_token="<eos>").digest != first.digest
    text = json.dumps(json.loads((folder / "tokenizer.json").read_text()), indent=7)
    (folder / "tokenizer.json").write_text(text)
    assert load_tokenizer(folder).digest == first.digest
    assert load_tokenizer(word_level(tmp_path, ["<unk>", "b", "</s>", "<eos>"])).digest != first.digest


def test_ids_beyond_the_vocabulary_do_not_break_decoding(tmp_path: Path) -> None:
    """A model's vocabulary may be padded above the tokenizer's."""
    tokenizer = bpe(tmp_path)
    assert tokenizer.decode([*tokenizer.encode("some words"), 50_000]) == "some words"


def test_width_follows_from_the_vocabulary(tmp_path: Path) -> None:
    """(T4)"""
    assert bpe(tmp_path / "a").token_bytes == 2
    tokenizer = load_tokenizer(word_level_dir(tmp_path / "b", 70_000))
    assert (tokenizer.token_bytes, tokenizer.vocab_size, tokenizer.max_id) == (4, 70_000, 69_999)


def test_a_vocabulary_with_holes_counts_by_its_highest_id(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "far": 80_000}, unk_token="<unk>"))
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.max_id, tokenizer.token_bytes) == (3, 80_000, 4)


def test_the_name_of_a_snapshot_is_that_of_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / "0f3c"
    assert bpe(folder).name == "org/name"
    assert bpe(tmp_path / "plain").name == "plain"


def test_saving_keeps_the_files_and_makes_missing_ones(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "a")
    tokenizer.save(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "b" / name).read_text() == (tmp_path / "a" / name).read_text()
    (tmp_path / "a" / "tokenizer_config.json").unlink()
    load_tokenizer(tmp_path / "a").save(tmp_path / "c")
    assert AutoTokenizer.from_pretrained(tmp_path / "c").eos_token == "<|endoftext|>"


def _nfc_digits(folder: Path) -> Tokenizer:
    backend = Tokenizer.from_file(str(bpe_dir(folder) / "tokenizer.json"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


BACKENDS = {
    "byte-level": lambda folder: bpe(folder).backend,
    "nfc-digits": _nfc_digits,
    "metaspace": lambda folder: load_tokenizer(metaspace_dir(folder)).backend,
    "word-level": lambda folder: load_tokenizer(word_level_dir(folder, 50)).backend,
}


@pytest.mark.parametrize("kind", list(BACKENDS))
def test_pieces_of_a_long_text_give_the_ids_of_the_whole(tmp_path: Path, kind: str) -> None:
    """(T22)"""
    backend = BACKENDS[kind](tmp_path)
    chance = random.Random(5)
    separators = [
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        " \n ",
        ". ",
        "e\u0301 ",
        "<|endoftext|>",
        "。",
        "12345 ",
    ]
    text = "".join(
        chance.choice(["the", "w7", "x'll", "é", "日本語", "her"]) + chance.choice(separators)
        for _ in range(4000)
    )
    ranges = list(pieces(backend, text, piece_chars=700))
    assert len(ranges) > 10
    joined = [id for a, b in ranges for id in backend.encode(text[a:b], add_special_tokens=False).ids]
    assert joined == backend.encode(text, add_special_tokens=False).ids


@settings(max_examples=40, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("ab1 \n\t.,'é日\u0301<|>"), min_size=200, max_size=3000))
def test_pieces_of_any_text_give_the_ids_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    backend = BACKENDS["nfc-digits"](tmp_path_factory.mktemp("t"))
    joined = [
        id
        for a, b in pieces(backend, text, piece_chars=64)
        for id in backend.encode(text[a:b], add_special_tokens=False).ids
    ]
    assert joined == backend.encode(text, add_special_tokens=False).ids


@settings(max_examples=40, deadline=None)
@given(
    unit=st.text(alphabet=st.sampled_from("abkoé日"), min_size=1, max_size=40), repeats=st.integers(20, 200)
)
@pytest.mark.parametrize("kind", ["byte-level", "nfc-digits", "metaspace"])
def test_text_without_spaces_is_cut_between_tokens(
    tmp_path_factory: pytest.TempPathFactory, kind: str, unit: str, repeats: int
) -> None:
    """Runs of one letter too: where tokens begin depends on where the run does (T22)."""
    backend = BACKENDS[kind](tmp_path_factory.mktemp("t"))
    text = unit * repeats
    joined = [
        id
        for a, b in pieces(backend, text, piece_chars=64)
        for id in backend.encode(text[a:b], add_special_tokens=False).ids
    ]
    assert joined == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["abcdefgh" * 100_000, "a" * 800_000, "日本" * 300_000])
def test_a_very_long_word_is_cut_between_tokens(tmp_path: Path, text: str) -> None:
    backend = bpe(tmp_path).backend
    assert len(list(pieces(backend, text))) > 2
    assert encode_long(backend, text).tolist() == backend.encode(text, add_special_tokens=False).ids


def test_a_text_without_any_place_to_cut_is_one_piece(tmp_path: Path) -> None:
    """For a vocabulary of whole words this is one word."""
    backend = load_tokenizer(word_level_dir(tmp_path, 50)).backend
    text = "abcdefgh" * 100_000
    assert list(pieces(backend, text)) == [(0, len(text))]
    assert encode_long(backend, text).tolist() == backend.encode(text, add_special_tokens=False).ids


def test_long_texts_can_be_stopped_between_pieces(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path)
    calls = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode_documents(["some words " * 200_000], poll)
    assert len(calls) == 3
