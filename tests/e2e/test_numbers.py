"""What is trained on how, seen from outside: order, epochs, accumulation, rates, decay, evaluation."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from protolith.errors import NonFiniteError
from protolith.formats.rundir import RunDir, read_json, read_metrics
from tests.support import tiny

FINGERPRINT = {"trainer__learning_rate": 0.0, "trainer__weight_decay": 0.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 20, first=100)
    tiny.write_model(folder / "model")
    return folder


def lines(run_dir):
    return read_metrics(RunDir(run_dir).metrics)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [True, False])
def test_each_epoch_has_its_own_order_and_every_row(place, tmp_path, workers, packing):
    """With rate 0 a step's loss tells which row it was (T11)."""
    changes = FINGERPRINT | {
        "trainer__max_steps": None,
        "trainer__num_epochs": 3,
        "trainer__batch_size": 1,
        "data__num_workers": workers,
        "data__packing": packing,
    }
    state = tiny.train(place, output__dir=str(tmp_path / "a"), **changes)
    assert state.stopped_by == "epochs"
    values = list(tiny.losses(state.run_dir).values())
    per_epoch = len(values) // 3
    epochs = [values[i * per_epoch : (i + 1) * per_epoch] for i in range(3)]
    assert len(values) == 3 * per_epoch
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    same = tiny.train(place, output__dir=str(tmp_path / "b"), **changes)
    assert list(tiny.losses(same.run_dir).values()) == values
    other = tiny.train(place, output__dir=str(tmp_path / "c"), **(changes | {"data__seed": 8}))
    assert list(tiny.losses(other.run_dir).values()) != values
    assert sorted(tiny.losses(other.run_dir).values()) == sorted(values)


def test_a_batch_split_into_micro_batches_is_the_same_batch(place, tmp_path):
    """Rows of unequal length: each token weighs the same however the batch was split."""
    runs = []
    for batch, accumulation in ((8, 1), (4, 2), (1, 8)):
        state = tiny.train(
            place,
            output__dir=str(tmp_path / f"{batch}"),
            trainer__batch_size=batch,
            trainer__gradient_accumulation=accumulation,
            data__packing=False,
        )
        runs.append((state, tiny.losses(state.run_dir)))
    first = runs[0][1]
    for state, values in runs[1:]:
        assert state.tokens == runs[0][0].tokens
        assert values == pytest.approx(first, rel=1e-5)


def test_eleven_rows_four_a_step_two_epochs_are_six_steps(tmp_path):
    """The remainder of an epoch is carried into the next; the last step is smaller (T25)."""
    tiny.write_model(tmp_path / "model")
    text = " ".join(tiny.WORDS[i % 50] for i in range(11 * 64))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": text}) + "\n")
    state = tiny.train(
        tmp_path,
        trainer__batch_size=1,
        trainer__gradient_accumulation=4,
        trainer__max_steps=None,
        trainer__num_epochs=2,
    )
    assert (state.step, state.epoch, state.stopped_by) == (6, 2.0, "epochs")
    assert state.tokens == 2 * 11 * 64
    rates = [line["optim/lr"] for line in lines(state.run_dir).values()]
    assert rates[-1] == 0.0
    assert rates[0] > 0
    assert read_json(state.run_dir / "plan.json")["total_steps"] == 6


def test_the_horizon_is_the_steps_really_done(place, tmp_path):
    """100 epochs allowed, 30 steps asked, accumulation 4: the last rate is the minimum (T30)."""
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__max_steps=30,
        trainer__num_epochs=100,
        trainer__gradient_accumulation=4,
        trainer__batch_size=1,
        trainer__scheduler="cosine",
        trainer__min_lr_ratio=0.1,
        data__max_seq_length=16,
    )
    rates = [line["optim/lr"] for line in lines(state.run_dir).values()]
    assert state.stopped_by == "steps"
    assert len(rates) == 30
    assert rates[-1] == pytest.approx(1e-4)
    assert rates[0] == pytest.approx(1e-3)


def test_a_warmup_longer_than_the_run_is_warned_about(place, tmp_path, capsys):
    tiny.train(place, output__dir=str(tmp_path / "run"), trainer__warmup_steps=1000, trainer__max_steps=3)
    assert "warmup" in capsys.readouterr().out.lower().split("warning:", 1)[1]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_evaluating_changes_nothing_in_training(place, tmp_path, dropout):
    """Also with dropout, whose random numbers evaluation must not draw from (T27)."""
    changes = {
        "trainer__max_steps": 20,
        "model__overrides": {"attention_dropout": dropout},
        "data__eval_path": str(place / "val.jsonl"),
    }
    often = tiny.train(
        place, output__dir=str(tmp_path / "a"), eval__every_n_steps=3, eval__on_start=True, **changes
    )
    never = tiny.train(place, output__dir=str(tmp_path / "b"), **(changes | {"data__eval_path": None}))
    assert tiny.losses(often.run_dir) == tiny.losses(never.run_dir)
    assert [s for s, line in lines(often.run_dir).items() if "val/loss" in line] == [
        0,
        3,
        6,
        9,
        12,
        15,
        18,
        20,
    ]


def test_with_rate_zero_all_validation_losses_are_equal(place, tmp_path):
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        data__eval_path=str(place / "val.jsonl"),
        eval__every_n_steps=2,
        **FINGERPRINT,
    )
    values = [line["val/loss"] for line in lines(state.run_dir).values() if "val/loss" in line]
    assert len(values) == 6
    assert len(set(values)) == 1


@pytest.mark.parametrize("rate", [30.0, 1e6])
def test_perplexity_of_a_huge_loss_is_inf_and_never_ends_a_run(place, tmp_path, rate):
    """Rate 1e6 without clipping: the run may stop for divergence, saying so; files stay strict JSON (T28)."""
    try:
        tiny.train(
            place,
            output__dir=str(tmp_path / "run"),
            trainer__learning_rate=rate,
            trainer__weight_decay=0.0,
            trainer__max_grad_norm=0,
            trainer__max_steps=3,
            trainer__scheduler="constant",
            data__eval_path=str(place / "val.jsonl"),
            eval__every_n_steps=1,
        )
    except NonFiniteError as error:
        assert "step" in error.where
    text = (tmp_path / "run" / "monitors" / "metrics.jsonl").read_text()

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    if rate == 30.0:  # at 1e6 activations overflow to a uniform guess, whose perplexity is small
        assert any(row.get("val/perplexity") == "inf" for row in rows)
    assert all(math.isfinite(float(row["val/loss"])) for row in rows if "val/loss" in row)


def test_decay_shrinks_matrices_and_leaves_gains_alone(place, tmp_path):
    """Rate 1e-3 and decay 10 over 200 steps leave about 0.13 of a decayed tensor (T31)."""
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__weight_decay=10.0,
        trainer__max_steps=200,
        trainer__scheduler="constant",
        logging__log_every_n_steps=100,
        data__max_seq_length=16,
    )
    weights = load_file(state.run_dir / "checkpoints" / "step_200" / "model.safetensors")
    gains = [t for name, t in weights.items() if "norm" in name]
    assert gains and all(0.8 < t.mean() < 1.2 for t in gains)
    start = tiny.train(place, output__dir=str(tmp_path / "start"), trainer__max_steps=1, **FINGERPRINT)
    before = load_file(start.run_dir / "checkpoints" / "step_1" / "model.safetensors")
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.o_proj.weight"):
        assert weights[name].norm() < 2 * before[name].norm()
    log = (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()
    assert "weight decay 10 on" in log


def test_first_loss_is_that_of_a_uniform_guess(place, tmp_path):
    """Nothing is left uninitialised (T35)."""
    state = tiny.train(place, output__dir=str(tmp_path / "run"), trainer__max_steps=1, **FINGERPRINT)
    vocabulary = read_json(place / "model" / "config.json")["vocab_size"]
    assert tiny.losses(state.run_dir)[1] == pytest.approx(math.log(vocabulary), abs=0.3)
    weights = load_file(state.run_dir / "model" / "model.safetensors")
    assert all(t.std() > 0 for name, t in weights.items() if "norm" not in name)


def test_the_finished_model_loads_in_transformers_and_has_the_same_loss(place, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        data__eval_path=str(place / "val.jsonl"),
        data__packing=False,
    )
    model = AutoModelForCausalLM.from_pretrained(state.run_dir / "model")
    tokenizer = AutoTokenizer.from_pretrained(state.run_dir / "model")
    loss_sum, count = 0.0, 0
    for line in (place / "val.jsonl").read_text().splitlines():
        ids = [
            *tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
        ids = torch.tensor([ids[:65]])
        with torch.no_grad():
            loss_sum += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert loss_sum / count == pytest.approx(state.metrics["val/loss"], rel=1e-5)


def test_the_end_of_text_is_learned_even_when_padding_is_the_same_token(tmp_path):
    """Targets are masked by position, never by id (T39)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny.write_model(tmp_path / "model")
    tiny.write_tokenizer(tmp_path / "model", pad_token=tiny.EOS)
    text = " ".join(tiny.WORDS[:6])
    (tmp_path / "corpus.jsonl").write_text((json.dumps({"text": text}) + "\n") * 200)
    state = tiny.train(
        tmp_path,
        data__packing=False,
        data__max_seq_length=32,
        trainer__max_steps=300,
        trainer__learning_rate=3e-3,
        logging__log_every_n_steps=100,
    )
    assert state.tokens == 300 * 2 * 6  # six targets a row: five words and the end
    model = AutoModelForCausalLM.from_pretrained(state.run_dir / "model")
    tokenizer = AutoTokenizer.from_pretrained(state.run_dir / "model")
    prompt = tokenizer(tiny.WORDS[0], return_tensors="pt", add_special_tokens=False).input_ids
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(out[0]) == f"{text} {tiny.EOS}"


def test_ids_above_two_bytes_are_trained_as_they_are(tmp_path):
    """A vocabulary of 70,000, words with ids from 65,540 on (T4)."""
    words = [f"w{i}" for i in range(70_000 - 2)]
    tiny.write_model(tmp_path / "model")
    tiny.write_tokenizer(tmp_path / "model", words)
    config = tiny.model_config(vocab_size=70_000, hidden_size=16, head_dim=4)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    used = [f"w{i}" for i in range(65_538, 65_598)]
    text = " ".join(used * 5)
    (tmp_path / "corpus.jsonl").write_text((json.dumps({"text": text}) + "\n") * 3)
    state = tiny.train(
        tmp_path, trainer__max_steps=60, trainer__learning_rate=1e-2, logging__log_every_n_steps=60
    )
    from protolith.data.tokenizer import load_tokenizer
    from protolith.model.export import load_exported
    from protolith.model.generate import generate

    tokenizer = load_tokenizer(tmp_path / "model")
    ids = generate(
        load_exported(state.run_dir / "model"),
        tokenizer.encode(used[0]),
        eos_id=tokenizer.eos_id,
        max_new_tokens=10,
        temperature=0.0,
    )
    assert set(tokenizer.decode(ids).split()) <= set(used)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_loss_that_is_not_finite_never_reaches_the_weights(place, tmp_path, policy, monkeypatch):
    from protolith.distributed.single import SingleEngine

    calls = []
    original = SingleEngine.forward_backward

    def sometimes_nan(self, *args, **kwargs):
        calls.append(1)
        value = original(self, *args, **kwargs)
        return math.nan if len(calls) == 4 else value

    monkeypatch.setattr(SingleEngine, "forward_backward", sometimes_nan)
    changes = {"output__dir": str(tmp_path / "run"), "trainer__on_nonfinite": policy, "trainer__max_steps": 6}
    if policy == "stop":
        with pytest.raises(NonFiniteError, match="step 4"):
            tiny.train(place, **changes)
        assert lines(tmp_path / "run")[4]["loss/mean"] == "nan"
        assert (tmp_path / "run" / "checkpoints" / "step_3").is_dir()
        assert read_json(tmp_path / "run" / "status.json")["error"]["code"] == "non_finite"
    else:
        state = tiny.train(place, **changes)
        assert state.step == 6
        assert state.metrics["progress/skipped_steps"] == 1
        assert all(math.isfinite(float(lines(state.run_dir)[s]["loss/mean"])) for s in (3, 5, 6))


def test_tokens_steps_and_ledger_add_up(place, tmp_path):
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__max_steps=None,
        trainer__num_epochs=2,
        data__packing=False,
        data__max_seq_length=100,
    )
    ledger = read_json(state.run_dir / "ledger.json")
    words = [len(tiny.document(i).split()) + 1 for i in range(60)]
    per_epoch = sum(min(n - 1, 100) for n in words)
    assert state.tokens == 2 * per_epoch
    text = json.dumps(ledger)
    assert f'"trained": {per_epoch}' in text
    assert lines(state.run_dir)[state.step]["progress/num_tokens"] == state.tokens
