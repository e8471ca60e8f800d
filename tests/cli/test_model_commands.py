"""``generate``, ``eval``, ``export`` and ``tokenizer train`` on a small model."""

from __future__ import annotations

import io
import json
import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_generate_writes_the_same_text_for_the_same_seed(protolith, model_dir):
    def words(seed: int, temperature: float = 1.0) -> str:
        answer = protolith(
            "generate", model_dir, "--prompt", "the stone", "--seed", seed, "--temperature", temperature,
            "--max-new-tokens", 12, "-o", "json",
        )  # fmt: skip
        assert answer.code == 0, answer.err
        assert answer.json["prompt"] == "the stone" and 1 <= answer.json["num_new_tokens"] <= 12
        return answer.json["text"]

    assert words(1) == words(1)
    assert words(1) != words(2)
    assert words(1, 0.0) == words(2, 0.0)


def test_generate_prints_prompt_and_text_and_nothing_that_steers_the_terminal(
    protolith, model_dir, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("from\x1b[2J stdin"))
    answer = protolith("generate", model_dir, "--prompt", "-", "--max-new-tokens", 30, "--temperature", 2)
    assert answer.code == 0
    assert answer.out.startswith("from\\x1b[2J stdin")
    assert "\x1b" not in answer.out and "\r" not in answer.out


@pytest.mark.parametrize("wrong", [["--seed", 2**70], ["--temperature", "nan"], ["--max-new-tokens", 0]])
def test_generate_refuses_impossible_numbers(protolith, model_dir, wrong):
    answer = protolith("generate", model_dir, *wrong)
    assert answer.code == 2 and wrong[0] in answer.err


def test_generate_starts_a_new_document_without_a_prompt(protolith, model_dir):
    answer = protolith("generate", model_dir, "--max-new-tokens", 3, "-o", "json")
    assert answer.code == 0 and answer.json["num_prompt_tokens"] == 1


def test_a_run_means_its_newest_complete_checkpoint_until_it_has_completed(
    protolith, make_run, add_checkpoint, model_dir
):
    run = make_run(status={"state": "running"})
    add_checkpoint(run, 5)
    newest = add_checkpoint(run, 15)
    (add_checkpoint(run, 20) / "model.safetensors").unlink()

    def used(place) -> str:
        answer = protolith("generate", place, "--max-new-tokens", 1, "-o", "json")
        assert answer.code == 0, answer.err
        return answer.json["model"]

    assert used(run) == str(newest)
    assert used(run / "checkpoints") == str(newest)
    assert used(run / "checkpoints" / "step_5").endswith("step_5")
    shutil.copytree(model_dir, run / "model")
    assert used(run) == str(newest)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "state": "completed"}))
    assert used(run) == str(run / "model")


def test_a_run_under_output_is_found_by_name(protolith, make_run, add_checkpoint, tmp_path, monkeypatch):
    add_checkpoint(make_run("mine"), 5)
    monkeypatch.chdir(tmp_path)
    assert protolith("generate", "mine", "--max-new-tokens", 1).code == 0
    assert protolith("export", "mine", "--output", "out").code == 0


def test_a_model_in_the_cache_is_found_by_name(protolith, model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path))
    shutil.copytree(model_dir, tmp_path / "models" / "little")
    assert protolith("generate", "little", "--max-new-tokens", 1).code == 0


@pytest.mark.parametrize("command", [["generate"], ["eval", "--data", "x"], ["export", "--output", "out"]])
def test_what_holds_no_model_is_refused_before_anything_is_loaded(
    protolith, make_run, add_checkpoint, tmp_path, command
):
    run = make_run()
    torn = add_checkpoint(run, 5)
    (torn / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()

    def code(place) -> tuple[int, str]:
        answer = protolith(command[0], place, *command[1:], "-o", "json")
        return answer.code, answer.json["error"]["code"]

    assert code("no/such/place") == (3, "not_found")
    assert code(torn) == (1, "checkpoint_invalid")
    assert code(run) == (3, "not_found")
    assert code(tmp_path / "empty") == (2, "model_invalid")
    assert code(run / "config.json") == (2, "model_invalid")


def test_eval_gives_the_loss_that_transformers_gives(protolith, model_dir, corpus):
    answer = protolith(
        "eval", model_dir, "--data", corpus, "--max-seq-length", 32, "--batch-size", 3, "-o", "json"
    )
    assert answer.code == 0, answer.err
    value = answer.json
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    ids: list[int] = []
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            ids += [
                *tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"],
                tokenizer.eos_token_id,
            ]
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 32):
            row = torch.tensor([ids[start : start + 33]])
            logits = model(row[:, :-1]).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
            count += row.shape[1] - 1
    assert value["num_tokens"] == count == len(ids) - 1
    assert value["loss"] == pytest.approx(total / count, abs=1e-5)
    assert value["perplexity"] == pytest.approx(math.exp(value["loss"]))


def test_eval_of_a_run_takes_the_row_length_it_was_trained_with(protolith, make_run, add_checkpoint, corpus):
    run = make_run()
    checkpoint = add_checkpoint(run, 5)
    for place in (run, checkpoint):
        assert protolith("eval", place, "--data", corpus, "-o", "json").json["max_seq_length"] == 16
    text = protolith("eval", run, "--data", corpus)
    assert "perplexity:" in text.out and "num_tokens:" in text.out


def test_eval_says_what_is_wrong_with_its_data(protolith, model_dir, tmp_path):
    missing = protolith("eval", model_dir, "--data", tmp_path / "none.jsonl")
    assert missing.code == 3 and "none.jsonl" in missing.err
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": oops}\n')
    bad = protolith("eval", model_dir, "--data", tmp_path / "bad.jsonl")
    assert bad.code == 2 and "bad.jsonl:2" in bad.err
    (tmp_path / "tiny.jsonl").write_text('{"text": "two words"}\n')
    small = protolith("eval", model_dir, "--data", tmp_path / "tiny.jsonl", "-o", "json")
    assert small.code == 2 and small.json["error"]["code"] == "corpus_too_small"
    assert "training" not in small.json["error"]["message"]
    assert protolith("eval", model_dir, "--data", "").code == 2


def test_export_makes_a_folder_that_transformers_loads_with_the_same_weights(
    protolith, make_run, add_checkpoint, model_dir, tmp_path
):
    run = make_run()
    add_checkpoint(run, 5)
    newest = add_checkpoint(run, 10)
    out = tmp_path / "exported"
    answer = protolith("export", run, "--output", out, "-o", "json")
    assert answer.code == 0, answer.err
    assert answer.json["step"] == 10 and answer.json["checkpoint"] == str(newest)
    assert not {"optimizer.safetensors", "manifest.json", "state.json"} & {
        path.name for path in out.iterdir()
    }
    ours, theirs = AutoModelForCausalLM.from_pretrained(model_dir), AutoModelForCausalLM.from_pretrained(out)
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert AutoTokenizer.from_pretrained(out).eos_token == "<|endoftext|>"
    again = protolith("export", run, "--output", out)
    assert again.code == 5 and "not empty" in again.err


def test_export_refuses_a_damaged_checkpoint_and_a_run_falls_back_to_an_older_one(
    protolith, make_run, add_checkpoint, tmp_path
):
    run = make_run()
    add_checkpoint(run, 5)
    damaged = add_checkpoint(run, 10) / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    refused = protolith("export", damaged.parent, "--output", tmp_path / "a")
    assert refused.code == 1 and "digest" in refused.err
    assert protolith("export", run, "--output", tmp_path / "b", "-o", "json").json["step"] == 5


def test_export_of_a_plain_model_is_refused(protolith, model_dir, tmp_path):
    assert protolith("export", model_dir, "--output", tmp_path / "x").code == 2


def test_tokenizer_train_writes_a_folder_that_transformers_loads(protolith, corpus, tmp_path):
    out = tmp_path / "tok"
    words = ["tokenizer", "train", corpus, "--vocab-size", 280, "--output", out]
    answer = protolith(*words, "-o", "json")
    assert answer.code == 0, answer.err
    assert answer.json["vocab_size"] == 280 and answer.json["eos_token"] == "<|endoftext|>"
    assert len(AutoTokenizer.from_pretrained(out)) == 280
    again = protolith(*words)
    assert again.code == 5 and "--overwrite" in again.err
    assert protolith(*words, "--overwrite").code == 0
    missing = protolith(
        "tokenizer", "train", tmp_path / "no.jsonl", "--vocab-size", 280, "--output", tmp_path / "b"
    )
    assert missing.code == 3


@pytest.mark.parametrize("words", [["generate"], ["export", "--output", "x"], ["eval", "--data", "d"]])
@pytest.mark.parametrize("place", ["checkpoints/step_9", "step_9"])
def test_a_checkpoint_that_does_not_exist_is_told_with_those_that_do(
    protolith, make_run, add_checkpoint, words, place
):
    run = make_run(status={"state": "running"})
    for step in (5, 15):
        add_checkpoint(run, step)
    answer = protolith(words[0], run / place, *words[1:])
    assert answer.code == 3
    assert f"error: no checkpoint {run / place}" in answer.err
    assert f"there are: step_5, step_15 in {run / 'checkpoints'}" in answer.err


def test_a_checkpoint_of_nothing_is_told_without_a_list(protolith, tmp_path):
    answer = protolith("generate", tmp_path / "step_9")
    assert answer.code == 3 and "give a run or checkpoint folder" in answer.err
