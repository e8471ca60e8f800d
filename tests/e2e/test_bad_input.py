"""Everything that can be wrong with what a person gives, through the real command: exit code, one clear
message, no traceback, and nothing in anybody's way afterwards."""

from __future__ import annotations

import json

import pytest

from tests.support import tiny


@pytest.fixture
def place(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 40)
    tiny.write_model(tmp_path / "model")
    return tmp_path


def refused(folder, code, *words, command=("pretrain",), **changes):
    result = tiny.cli(*command, tiny.write_recipe(folder, **changes))
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    return result


def add(folder, *lines):
    with open(folder / "corpus.jsonl", "ab") as out:
        for line in lines:
            out.write(line if isinstance(line, bytes) else line.encode())
            out.write(b"\n")


def test_a_missing_corpus(place):
    refused(place, 3, "absent.jsonl", data__path=str(place / "absent.jsonl"))


def test_an_empty_corpus(place):
    (place / "corpus.jsonl").write_text("")
    refused(place, 2, "corpus.jsonl")


def test_a_corpus_smaller_than_a_row(place):
    """(T3)"""
    (place / "corpus.jsonl").write_text('{"text": "ka lo"}\n' * 3)
    refused(place, 2, "tokens found", "65 needed")


def test_validation_data_smaller_than_a_row(place):
    (place / "val.jsonl").write_text('{"text": "ka lo"}\n' * 3)
    refused(place, 2, "validation data", "65 needed", data__eval_path=str(place / "val.jsonl"))


def test_broken_json_names_file_and_line(place):
    add(place, '{"text": "kaa", }')
    refused(place, 2, "corpus.jsonl:41")


def test_a_wrong_encoding_names_file_and_line(place):
    add(place, b'{"text": "\xff\xfe"}')
    refused(place, 2, "corpus.jsonl:41")


def test_null_numeric_and_empty_texts_beyond_one_percent_stop_the_run(place):
    add(place, '{"text": null}', '{"text": 5}', '{"text": ""}', '{"other": "x"}')
    refused(place, 2, "corpus.jsonl:41", "corpus.jsonl:42", "corpus.jsonl:43", "corpus.jsonl:44")


def test_a_tokenizer_without_an_end_of_text(place):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*tiny.WORDS, "<unk>"])}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(place / "model" / "tokenizer.json"))
    (place / "model" / "tokenizer_config.json").unlink()
    refused(place, 2, "eos_token")


def test_a_tokenizer_larger_than_the_vocabulary(place):
    """(T38 a)"""
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    refused(place, 2, "100", "452")


def test_a_model_folder_that_is_not_there(place):
    refused(place, 3, "nowhere", model__name=str(place / "nowhere"))


def test_an_unknown_key_with_its_line_and_the_nearest(place):
    """(T49)"""
    refused(place, 2, "recipe.yaml:", "learning_rates", "learning_rate", trainer__learning_rates=1)


def test_settings_of_later_versions_are_refused_by_name(place):
    refused(place, 2, "trainer.strategy", "not available yet", trainer__strategy="deepspeed")


def test_an_output_folder_in_use(place):
    """(T59)"""
    assert tiny.cli("pretrain", tiny.write_recipe(place, trainer__max_steps=2)).returncode == 0
    refused(place, 5, "--resume", "--overwrite", trainer__max_steps=2)
    again = tiny.cli("pretrain", tiny.write_recipe(place, trainer__max_steps=2), "--overwrite")
    assert again.returncode == 0, again.stderr


def test_an_output_path_that_is_a_file(place):
    (place / "file").write_text("x")
    refused(place, 5, "file", output__dir=str(place / "file"))


def test_errors_as_one_json_document(place):
    recipe = tiny.write_recipe(place, data__path=str(place / "absent.jsonl"))
    result = tiny.cli("pretrain", recipe, "-o", "json")
    assert result.returncode == 3
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "not_found"
    assert "absent.jsonl" in error["message"] + error["where"]


def test_a_failed_start_is_in_nobodys_way(place):
    (place / "good.jsonl").write_bytes((place / "corpus.jsonl").read_bytes())
    add(place, "{broken")
    refused(place, 2, "corpus.jsonl:41")
    status = json.loads((place / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["error"]["code"] == "bad_record"
    recipe = tiny.write_recipe(place, data__path=str(place / "good.jsonl"), trainer__max_steps=2)
    assert tiny.cli("pretrain", recipe).returncode == 0


def test_a_bom_and_windows_line_ends_are_fine(place):
    text = (place / "corpus.jsonl").read_text()
    (place / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    result = tiny.cli("pretrain", tiny.write_recipe(place, trainer__max_steps=2))
    assert result.returncode == 0, result.stderr


def test_paths_with_spaces_brackets_and_links(place):
    """(T56)"""
    odd = place / "my data [v1] (é)"
    odd.mkdir()
    (place / "corpus.jsonl").rename(odd / "part [1].jsonl")
    (odd / "loop").symlink_to(odd)
    (place / "link").symlink_to(odd)
    tokens = set()
    for name in (str(odd), str(odd) + "/", str(place / "link"), str(odd / "part [1].jsonl")):
        result = tiny.cli("pretrain", tiny.write_recipe(place, data__path=name), "--overwrite", "-o", "json")
        assert result.returncode == 0, result.stderr
        tokens.add(json.loads((place / "run" / "plan.json").read_text())["targets_per_epoch"])
    assert len(tokens) == 1
