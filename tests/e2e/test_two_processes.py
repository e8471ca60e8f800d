"""The same run in one process and in several: rows, losses, norms, weights, and where it goes on from."""

from __future__ import annotations

import functools
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from protolith.formats.rundir import RunDir, read_json, read_metrics
from protolith.training.request import Request
from protolith.training.stop import StopRequested
from tests.support import ranks, shards, tiny

#: Metrics that say what was computed, not how fast.
NUMBERS = ("loss", "val", "optim", "progress", "perplexity")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 21, first=100)
    tiny.write_model(folder / "model")
    vocabulary = 452
    shards.write_shard(folder / "few" / "a.ds", shards.documents(3, vocab=vocabulary))
    shards.write_shard(folder / "few" / "b.ds", shards.documents(97, first=3, vocab=vocabulary))
    shards.write_shard(folder / "held" / "a.ds", shards.documents(5, first=200, vocab=vocabulary))
    return folder


def numbers(run_dir):
    return {
        step: {name: value for name, value in line.items() if name.split("/")[0] in NUMBERS}
        for step, line in read_metrics(RunDir(run_dir).metrics).items()
    }


def weights(run_dir):
    return load_file(run_dir / "model" / "model.safetensors")


def check_near(run_dir, other, tolerance=1e-5):
    ours, theirs = numbers(run_dir), numbers(other)
    assert ours.keys() == theirs.keys()
    for step, line in ours.items():
        assert line == pytest.approx(theirs[step], rel=tolerance, abs=tolerance), step
    for name, tensor in weights(run_dir).items():
        apart = (tensor - weights(other)[name]).abs()
        # AdamW makes a full step of a gradient that is hardly more than rounding: some may be further apart
        assert apart.mean() < 1e-6 and apart.max() < 1e-4, name


def check_ended(ended, **wanted):
    assert [rank.error for rank in ended] == [""] * len(ended), ended
    for rank in ended:
        assert {name: getattr(rank.value, name) for name in wanted} == wanted


def test_two_ranks_are_one_process_with_two_micro_batches_bit_for_bit(place, tmp_path):
    changes = {
        "data__eval_path": str(place / "val.jsonl"),
        "eval__every_n_steps": 4,
        "trainer__batch_size": 1,
        "trainer__max_grad_norm": 0.1,
        "eval__sample_prompts": ["kaa"],
    }
    one = tiny.train(place, **changes, trainer__gradient_accumulation=2, output__dir=str(tmp_path / "one"))
    ended = ranks.train(place, 2, **changes, output__dir=str(tmp_path / "two"))
    check_ended(ended, step=12, tokens=one.tokens, stopped_by="steps")
    assert numbers(tmp_path / "two") == numbers(one.run_dir)
    ours, theirs = weights(tmp_path / "two"), weights(one.run_dir)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "lm_head.weight" not in ours, "tied embeddings stay tied"
    assert read_json(RunDir(tmp_path / "two").ledger) == read_json(RunDir(one.run_dir).ledger)
    both = (tmp_path / "two", one.run_dir)
    for file in ("model", "optimizer"):
        ours, theirs = (load_file(run / f"checkpoints/step_10/{file}.safetensors") for run in both)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rng = load_file(tmp_path / "two" / "checkpoints/step_10" / "rng.safetensors")
    assert sorted(rng) == ["cpu", "cpu/1"]
    assert not torch.equal(rng["cpu"], rng["cpu/1"])
    assert sorted(p.name for p in (tmp_path / "two/logs/attempt_1").iterdir()) == ["rank_0.log", "rank_1.log"]
    assert len((tmp_path / "two/monitors/samples.jsonl").read_text().splitlines()) == 3


SOURCES = {
    "windows": {},
    "documents": {"data__packing": False, "model__activation_checkpointing": "full"},
    "streamed": {"data__streaming": True, "data__num_workers": 1},
    "masked": {"data__document_mask": True, "data__eval_path": "val.jsonl"},
    "mixed": {
        "data__path": None,
        "data__sources": [{"path": "corpus.jsonl", "weight": 2.0}, {"path": "val.jsonl", "weight": 1.0}],
        "trainer__num_epochs": None,
        "trainer__max_steps": 8,
    },
    "shards": {"data__format": "tokens", "data__path": "few", "data__eval_path": "held"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_ends_by_itself_with_the_numbers_of_one_process(place, tmp_path, source):
    """Odd rows, a small last step, fewer files than ranks, five held-out documents (T18, T20, T21)."""
    changes = {"trainer__max_steps": None, "trainer__num_epochs": 1, **SOURCES[source]}
    for key in ("data__path", "data__eval_path"):
        if changes.get(key):
            changes[key] = str(place / changes[key])
    for other in changes.get("data__sources", ()):
        other["path"] = str(place / other["path"])
    one = tiny.train(place, **changes, trainer__batch_size=6, output__dir=str(tmp_path / "one"))
    for size, rows in ((2, 1), (3, 2)):
        run_dir = tmp_path / str(size)
        split = {"trainer__batch_size": rows, "trainer__gradient_accumulation": 6 // size // rows}
        ended = ranks.train(place, size, **changes, **split, output__dir=str(run_dir))
        check_ended(ended, step=one.step, tokens=one.tokens, stopped_by=one.stopped_by)
        check_near(run_dir, one.run_dir)
        assert read_json(RunDir(run_dir).ledger) == read_json(RunDir(one.run_dir).ledger)


def test_coming_back_on_another_number_of_processes(place, tmp_path):
    changes = {
        "trainer__batch_size": 1,
        "trainer__checkpoint_every_n_steps": 4,
        "data__streaming": True,
        "output__dir": str(tmp_path / "run"),
    }
    whole = tiny.train(
        place, **(changes | {"trainer__batch_size": 2, "output__dir": str(tmp_path / "whole")})
    )
    first = ranks.train(place, 2, request=stopping_after(4), **changes)
    check_ended(first, step=4, stopped_by="signal")
    again = stopping_after(8, resume="latest")
    second = tiny.train(place, request=again, **(changes | {"trainer__batch_size": 2}))
    assert (second.step, second.stopped_by) == (8, "signal")
    third = ranks.train(place, 2, request=Request(resume="latest"), **changes)
    check_ended(third, step=12, stopped_by="steps")
    check_near(tmp_path / "run", whole.run_dir)


def stopping_after(steps, **words):
    """A request whose stop comes with the step of that number, on rank 1 where there are several."""
    from protolith.training import loop
    from protolith.training.stop import StopFlag

    flag = StopFlag()
    original = loop.Loop._advance

    def advance(self, batch, result):
        original(self, batch, result)
        if self.state.step == steps and os.environ.get("RANK", "1") == "1":
            flag.by = "signal"

    loop.Loop._advance = advance
    return Request(stop=flag, **words)


@pytest.fixture(autouse=True)
def _put_back(monkeypatch):
    from protolith.training import loop

    monkeypatch.setattr(loop.Loop, "_advance", loop.Loop._advance)


def test_names_are_the_same_with_compile_and_without(place, tmp_path, monkeypatch):
    """Compiled on two ranks, then plain in one process, which takes up what they saved (T37)."""
    # traced and wrapped as always, and run as it is: generating code would take a minute
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    changes = {"trainer__batch_size": 1, "trainer__max_steps": 6, "output__dir": str(tmp_path / "run")}
    alone = {"trainer__batch_size": 2}
    whole = tiny.train(place, **(changes | alone | {"output__dir": str(tmp_path / "whole")}))
    check_ended(ranks.train(place, 2, request=stopping_after(3), **changes, model__compile=True), step=3)
    assert "compile: on" in (tmp_path / "run/logs/latest/rank_1.log").read_text()
    for file in ("model", "optimizer"):
        saved = load_file(tmp_path / f"run/checkpoints/step_3/{file}.safetensors")
        assert not [name for name in saved if "module." in name or "_orig_mod" in name]
    assert tiny.train(place, request=Request(resume="latest"), **(changes | alone)).step == 6
    check_near(tmp_path / "run", whole.run_dir)


def test_dropout_draws_its_own_on_each_rank_and_goes_on_with_it(place, tmp_path):
    changes = {
        "trainer__batch_size": 1,
        "model__overrides": {"attention_dropout": 0.3},
        "trainer__checkpoint_every_n_steps": 4,
        "output__dir": str(tmp_path / "run"),
    }
    check_ended(ranks.train(place, 2, **(changes | {"output__dir": str(tmp_path / "whole")})), step=12)
    check_ended(ranks.train(place, 2, request=stopping_after(5), **changes), step=5)
    check_ended(ranks.train(place, 2, request=Request(resume="latest"), **changes), step=12)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    more = changes | {"trainer__gradient_accumulation": 1, "trainer__max_steps": 14}
    accept = Request(resume="latest", accept_changes=("schedule", "batch"))
    check_ended(ranks.train(place, 3, request=accept, **more), stopped_by="steps")
    rng = load_file(tmp_path / "run" / "checkpoints/step_18" / "rng.safetensors")
    assert len({state.numpy().tobytes() for state in rng.values()}) == 3, "rank 2 was new"


def test_a_validation_that_one_rank_is_asked_to_leave_is_left_by_all(place, tmp_path):
    from protolith.training import loop
    from protolith.training.stop import StopFlag

    changes = {
        "data__eval_path": str(place / "val.jsonl"),
        "eval__every_n_steps": 3,
        "trainer__max_steps": 6,
        "trainer__batch_size": 1,
        "output__dir": str(tmp_path / "run"),
    }

    def action(rank):
        flag = StopFlag()
        original = loop.validate

        def validate(engine, sets, stop):
            def asked_at_the_third(batches):
                for number, batch in enumerate(batches):
                    if rank == 1 and number == 2:
                        flag.by = "user"
                    yield batch

            asked = {name: asked_at_the_third(batches) for name, batches in sets.items()}
            return original(engine, asked, stop)

        loop.validate = validate
        return tiny.train(place, request=Request(stop=flag), **changes)

    check_ended(ranks.together(2, action), step=3, stopped_by="user")
    assert (tmp_path / "run/checkpoints/step_3").is_dir()
    assert "val/loss" not in numbers(tmp_path / "run")[3]
    check_ended(ranks.train(place, 2, request=Request(resume="latest"), **changes), step=6)
    assert "val/loss" in numbers(tmp_path / "run")[3]


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_loss_that_is_not_finite_on_one_rank_is_not_finite_for_all(place, tmp_path, policy):
    from protolith.distributed.ddp import DdpEngine

    def action(rank):
        original, calls = DdpEngine.forward_backward, []

        def once_nan(self, *args, **kwargs):
            calls.append(1)
            value = original(self, *args, **kwargs)
            return value * float("nan") if len(calls) == 4 and rank == 1 else value

        DdpEngine.forward_backward = once_nan
        return tiny.train(
            place,
            trainer__on_nonfinite=policy,
            trainer__max_steps=6,
            trainer__batch_size=1,
            output__dir=str(tmp_path / "run"),
        )

    ended = ranks.together(2, action)
    if policy == "stop":
        assert [rank.error for rank in ended] == ["NonFiniteError"] * 2
        assert (tmp_path / "run/checkpoints/step_3").is_dir()
    else:
        check_ended(ended, step=6)
        assert [rank.value.metrics["progress/skipped_steps"] for rank in ended] == [1, 1]


def test_data_that_goes_bad_on_one_rank_ends_all_with_what_was_trained(place, tmp_path):
    from protolith.data.window_rows import WindowRows
    from protolith.errors import ShardError

    def action(rank):
        original, calls = WindowRows.read, []

        def bad_at_the_fourth(self, rows):
            calls.append(1)
            if rank == 1 and len(calls) == 4:
                raise ShardError("the file is gone", where="b.ds")
            return original(self, rows)

        WindowRows.read = bad_at_the_fourth
        return tiny.train(place, trainer__batch_size=1, output__dir=str(tmp_path / "run"))

    ended = ranks.together(2, action)
    assert [rank.error for rank in ended] == ["WorkerLostError", "ShardError"]
    assert (tmp_path / "run/checkpoints/step_3").is_dir()


def test_a_killed_rank_ends_the_others_in_seconds(place, tmp_path):
    def action(rank):
        from protolith.training import loop

        original = loop.optimizer_step
        calls = []

        def killed_at_the_third(*args):
            calls.append(1)
            if rank == 1 and len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        loop.optimizer_step = killed_at_the_third
        return tiny.train(place, trainer__batch_size=1, output__dir=str(tmp_path / "run"))

    ended = ranks.together(2, action, timeout_s=20)
    assert [rank.error for rank in ended] == ["WorkerLostError", "killed"]
    assert read_json(tmp_path / "run/status.json")["error"]["code"] == "worker_lost"


def test_a_stop_before_training_is_a_stop_for_the_rank_that_is_left_too(place, tmp_path):
    from protolith.training import pretrain
    from protolith.training.stop import StopFlag

    def action(rank):
        flag = StopFlag()
        original = pretrain.build_engine

        def asked_too_late_to_look(*args):
            if rank == 0:
                flag.by = "signal"
                return original(*args)
            raise StopRequested

        pretrain.build_engine = asked_too_late_to_look
        return tiny.train(place, request=Request(stop=flag), output__dir=str(tmp_path / "run"))

    check_ended(ranks.together(2, action), step=0, stopped_by="signal")
    assert read_json(tmp_path / "run/status.json")["state"] == "stopped"


def test_an_error_of_rank_0_before_training_does_not_leave_the_others_waiting(place, tmp_path):
    tiny.train(place, trainer__max_steps=1, output__dir=str(tmp_path / "run"))
    ended = ranks.train(place, 2, output__dir=str(tmp_path / "run"))
    assert [rank.error for rank in ended] == ["OutputInUseError", "WorkerLostError"]


def test_an_error_of_another_rank_before_training_does_not_leave_rank_0_waiting(place, tmp_path):
    from protolith.errors import TokenizerError
    from protolith.training import pretrain

    def action(rank):
        def refuse(*_args, **_kwargs):
            raise TokenizerError("no tokenizer on this machine")

        if rank == 1:
            pretrain.load_tokenizer = refuse
        return tiny.train(place, output__dir=str(tmp_path / "run"))

    ended = ranks.together(2, action)
    assert [rank.error for rank in ended] == ["WorkerLostError", "TokenizerError"]


def test_ranks_that_see_other_data_do_not_train_together(place, tmp_path):
    tiny.write_corpus(tmp_path / "other.jsonl", 59)

    def action(rank):
        data = {"data__path": str(tmp_path / "other.jsonl")} if rank else {}
        return tiny.train(place, output__dir=str(tmp_path / "run"), **data)

    ended = ranks.together(2, action)
    assert ended[1].error == "DataError" and "rank 1 does not see" in ended[1].message


def test_a_config_for_more_processes_than_there_are_is_refused(place, tmp_path):
    from protolith.errors import UsageError

    with pytest.raises(UsageError, match="2 processes are asked for and this run has 1"):
        tiny.train(place, trainer__num_gpus=2, output__dir=str(tmp_path / "run"))
