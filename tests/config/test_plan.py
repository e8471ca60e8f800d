"""The arithmetic of a run: steps, epochs, schedule, disk, memory."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.config.plan import BatchPlan, ModelShape, batch_plan, checkpoints_on_disk, make_plan
from protolith.config.schema import TrainConfig
from protolith.errors import CorpusTooSmallError, InvalidValueError


def config(data=None, eval_=None, model=None, **trainer):
    return TrainConfig(
        model={"name": "m", **(model or {})}, data={"path": "c", "max_seq_length": 8, **(data or {})}, trainer=trainer, eval=eval_ or {}
    )  # fmt: skip


def plan(num_rows=100, num_targets=None, world_size=1, num_parameters=1000, num_eval_rows=0, **kwargs):
    return make_plan(
        config(**kwargs),
        world_size=world_size,
        num_rows=num_rows,
        num_targets=num_rows * 8 if num_targets is None else num_targets,
        num_parameters=num_parameters,
        num_eval_rows=num_eval_rows,
    )


# batches


def test_the_global_batch_is_rows_times_accumulation_times_processes():
    assert batch_plan(config(batch_size=4, gradient_accumulation=8), 2) == BatchPlan(4, 8, 2, 64)


def test_accumulation_follows_from_a_global_batch():
    assert batch_plan(config(batch_size=4, global_batch_size=64), 2) == BatchPlan(4, 8, 2, 64)
    assert batch_plan(config(batch_size=4, global_batch_size=4), 1).accumulation == 1


@pytest.mark.parametrize(
    ("batch_size", "wanted", "world_size", "near"),
    [(4, 10, 1, "use 8 or 12"), (4, 12, 2, "use 8 or 16"), (4, 4, 2, "use 8,")],
)
def test_a_global_batch_that_cannot_be_shared_is_refused_with_ones_that_can(
    batch_size, wanted, world_size, near
):
    with pytest.raises(InvalidValueError, match="no multiple of") as caught:
        batch_plan(config(batch_size=batch_size, global_batch_size=wanted), world_size)
    assert near in caught.value.hint
    assert caught.value.where == "trainer.global_batch_size"


def test_messages_use_the_names_of_the_file():
    names = {"trainer.global_batch_size": "data.batch_size", "trainer.batch_size": "data.micro_batch_size"}
    with pytest.raises(
        InvalidValueError, match=r"data\.batch_size = 10 is no multiple of data\.micro_batch_size = 4"
    ):
        batch_plan(config(batch_size=4, global_batch_size=10), 1, names.__getitem__)


# steps


def test_rows_run_on_across_the_border_of_an_epoch():
    """11 windows, batch 1, accumulation 4, 2 epochs: 22 rows in 6 steps, the last one with 2 rows (T25)."""
    found = plan(11, batch_size=1, gradient_accumulation=4, num_epochs=2)
    assert (found.total_rows, found.total_steps, found.last_step_rows) == (22, 6, 2)
    assert (found.epochs, found.ends_by, found.decay_steps) == (2.0, "epochs", 5)


@pytest.mark.parametrize(
    ("rows", "kwargs", "steps", "total_rows", "ends_by"),
    [
        (100, {"batch_size": 4}, 25, 100, "epochs"),
        (101, {"batch_size": 4}, 26, 101, "epochs"),
        (3, {"batch_size": 4}, 1, 3, "epochs"),
        (100, {"batch_size": 4, "num_epochs": 3}, 75, 300, "epochs"),
        (100, {"batch_size": 4, "max_steps": 30}, 30, 120, "steps"),
        (100, {"batch_size": 4, "max_steps": 30, "num_epochs": 1}, 25, 100, "epochs"),
        (100, {"batch_size": 4, "max_steps": 25, "num_epochs": 1}, 25, 100, "steps"),
        (101, {"batch_size": 4, "max_steps": 26, "num_epochs": 1}, 26, 101, "epochs"),
        (100, {"batch_size": 4, "max_steps": 10, "num_epochs": 100}, 10, 40, "steps"),
        (100, {"batch_size": 4, "max_tokens": 320}, 10, 40, "tokens"),
        (100, {"batch_size": 4, "max_tokens": 321}, 11, 44, "tokens"),
        (100, {"batch_size": 4, "max_tokens": 1}, 1, 4, "tokens"),
        (100, {"batch_size": 4, "max_tokens": 320, "max_steps": 10}, 10, 40, "steps"),
        (100, {"batch_size": 4, "max_tokens": 8000}, 250, 1000, "tokens"),
    ],
)
def test_the_limit_that_comes_first_ends_the_run(rows, kwargs, steps, total_rows, ends_by):
    found = plan(rows, **kwargs)
    assert (found.total_steps, found.total_rows, found.ends_by) == (steps, total_rows, ends_by)
    assert found.epochs == pytest.approx(total_rows / rows)


def test_tokens_become_steps_through_the_mean_number_of_targets():
    # Half of each row is padding: twice as many rows for as many tokens.
    found = plan(100, num_targets=400, batch_size=4, max_tokens=320)
    assert (found.total_steps, found.total_tokens) == (20, 320)


def test_the_horizon_is_counted_in_optimizer_steps():
    """100 epochs of data and 30 steps with accumulation 4: the rate falls over the 30 (T30)."""
    found = plan(100, batch_size=1, gradient_accumulation=4, num_epochs=100, max_steps=30)
    assert (found.total_steps, found.warmup_steps, found.decay_steps) == (30, 0, 29)


@pytest.mark.parametrize("rows", [0, -1])
def test_no_rows_is_no_run(rows):
    with pytest.raises(CorpusTooSmallError, match="nothing to train on"):
        plan(rows)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 10_000), batch=st.integers(1, 50), accumulation=st.integers(1, 9), world=st.integers(1, 8),
    epochs=st.none() | st.integers(1, 50), steps=st.just(-1) | st.integers(1, 10_000), tokens=st.none() | st.integers(1, 10**9),
)  # fmt: skip
def test_a_plan_always_adds_up(rows, batch, accumulation, world, epochs, steps, tokens):
    if epochs is None and steps == -1 and tokens is None:
        return
    found = plan(
        rows, world_size=world, batch_size=batch, gradient_accumulation=accumulation, num_epochs=epochs, max_steps=steps,
        max_tokens=tokens, warmup_ratio=0.1,
    )  # fmt: skip
    global_rows = found.batch.global_rows
    assert global_rows == batch * accumulation * world
    assert found.total_rows == (found.total_steps - 1) * global_rows + found.last_step_rows
    assert 1 <= found.last_step_rows <= global_rows
    assert steps == -1 or found.total_steps <= steps
    assert epochs is None or found.total_rows <= epochs * rows
    if tokens is not None:
        assert (found.total_steps - 1) * global_rows * 8 < tokens
    assert found.warmup_steps >= 1
    assert found.warmup_steps + found.decay_steps == max(found.total_steps, found.warmup_steps)
    assert json.loads(json.dumps(found.to_dict()))["total_steps"] == found.total_steps


# schedule


@pytest.mark.parametrize(
    ("kwargs", "warmup", "decay"),
    [
        ({}, 0, 99),
        ({"warmup_steps": 10}, 10, 90),
        ({"warmup_ratio": 0.07}, 7, 93),
        ({"warmup_ratio": 0.001}, 1, 99),
        ({"warmup_ratio": 1.0}, 100, 0),
        ({"scheduler": "linear", "warmup_steps": 10, "decay_steps": 20}, 10, 20),
        ({"scheduler": "linear", "warmup_steps": 10, "decay_steps": 2000}, 10, 90),
        ({"scheduler": "wsd"}, 0, 20),
        ({"scheduler": "wsd", "decay_steps": 30}, 0, 30),
        ({"scheduler": "wsd", "warmup_steps": 95}, 95, 5),
        ({"scheduler": "constant"}, 0, None),
        ({"scheduler": "constant_with_warmup", "warmup_steps": 5}, 5, None),
        ({"scheduler": "inverse_sqrt", "warmup_steps": 5}, 5, None),
    ],
)
def test_lengths_of_warmup_and_decay(kwargs, warmup, decay):
    found = plan(400, batch_size=4, max_steps=100, **kwargs)
    assert (found.warmup_steps, found.decay_steps) == (warmup, decay)


def test_a_warmup_longer_than_the_run_is_warned_about():
    """Warmup 1,000 with 30 steps is said, with what it means (T30)."""
    (warning,) = plan(1000, max_steps=30, warmup_steps=1000).warnings
    assert warning == (
        "trainer.warmup_steps: a warmup of 1,000 steps is longer than the run of 30 steps: "
        "the rate will only reach 3 % of trainer.learning_rate"
    ).replace("run of 30 steps", "run of 30")
    (warning,) = plan(1000, max_steps=30, warmup_steps=30).warnings
    assert "the whole run of 30 steps is warmup" in warning
    (warning,) = plan(1000, max_steps=30, warmup_ratio=1.0).warnings
    assert warning.startswith("trainer.warmup_ratio: ")
    assert plan(1000, max_steps=30, warmup_steps=29).warnings == ()


def test_a_decay_longer_than_the_run_is_warned_about():
    (warning,) = plan(1000, max_steps=30, decay_steps=40).warnings
    assert "trainer.decay_steps = 40 is more than the 29 steps" in warning


def test_data_that_repeats_is_said_when_nobody_asked_for_epochs():
    (warning,) = plan(100, batch_size=4, max_steps=300).warnings
    assert warning == "the data has 100 rows and the run takes 1,200: each is read 12 times"
    assert plan(100, batch_size=4, num_epochs=12).warnings == ()


def test_a_step_larger_than_the_run_is_said():
    (warning,) = plan(3, batch_size=8).warnings
    assert "a step takes 8 rows and the whole run has 3" in warning


# disk and memory


@pytest.mark.parametrize(
    ("kwargs", "steps", "expected"),
    [
        ({"checkpoint_every_n_steps": 10}, 100, (10, 10, 10)),
        ({"checkpoint_every_n_steps": 10}, 105, (11, 11, 11)),
        ({"checkpoint_every_n_steps": 10, "save_last": False}, 105, (10, 10, 10)),
        ({"checkpoint_every_n_steps": 10, "keep_last": 2}, 105, (11, 2, 3)),
        ({"checkpoint_every_n_steps": 10, "keep_last": 50}, 105, (11, 11, 11)),
        ({"checkpoint_every_n_steps": 10, "keep_last": 2, "keep_every": 20}, 105, (11, 7, 8)),
        ({"checkpoint_every_n_steps": 10, "keep_last": 1, "keep_every": 15}, 100, (10, 4, 5)),
        ({"checkpoint_every_n_steps": 500}, 30, (1, 1, 1)),
        ({"checkpoint_every_n_steps": 500, "save_last": False}, 30, (0, 0, 0)),
        ({"checkpoint_every_n_steps": None}, 30, (1, 1, 1)),
        ({"checkpoint_every_n_steps": None, "keep_last": 1, "keep_every": 30}, 30, (1, 1, 1)),
    ],
)
def test_how_many_checkpoints_lie_on_the_disk(kwargs, steps, expected):
    assert checkpoints_on_disk(config(**kwargs), steps) == expected


@pytest.mark.parametrize(
    ("kwargs", "evaluated", "expected"),
    [
        ({"checkpoint_every_n_steps": 10}, 5, (20, 20, 20)),
        ({"checkpoint_every_n_steps": 10}, 20, (10, 10, 10)),
        ({"checkpoint_every_n_steps": 10, "keep_last": 2}, 5, (20, 3, 4)),
        ({"checkpoint_every_n_steps": None, "save_last": False}, None, (1, 1, 1)),
        ({"checkpoint_every_n_steps": None}, None, (1, 1, 1)),
    ],
)
def test_the_best_by_validation_takes_room_too(kwargs, evaluated, expected):
    held_out = config(save_best=True, **kwargs)
    held_out = held_out.model_copy(
        update={
            "data": held_out.data.model_copy(update={"eval_path": "val.jsonl"}),
            "eval": held_out.eval.model_copy(update={"every_n_steps": evaluated}),
        }
    )
    assert checkpoints_on_disk(held_out, 100) == expected


def test_the_best_without_held_out_data_is_said():
    (warning,) = plan(100, batch_size=1, save_best=True).warnings
    assert "save_best has no effect" in warning


def test_disk_has_room_for_the_one_being_written():
    """Checkpoints of 25 MB with keep 2 need 75 MB (T43)."""
    parameters = 25_000_000 // 12
    found = plan(
        1000, num_parameters=parameters, batch_size=1, max_steps=100, checkpoint_every_n_steps=10, keep_last=2
    )
    assert found.checkpoint_bytes == pytest.approx(25e6, rel=0.01)
    assert found.disk_bytes == 3 * found.checkpoint_bytes
    assert found.num_checkpoints == 10


def test_disk_without_rotation_holds_all_checkpoints_and_the_export():
    found = plan(1000, batch_size=1, max_steps=100, checkpoint_every_n_steps=10)
    assert found.disk_bytes == 10 * found.checkpoint_bytes + 4 * 1000


def test_a_checkpoint_has_about_twelve_bytes_for_each_parameter():
    assert plan(num_parameters=600_000_000).checkpoint_bytes == pytest.approx(7.2e9, rel=0.001)


def test_memory_grows_with_what_it_is_made_of():
    shape = ModelShape(hidden_size=256, num_layers=6, intermediate_size=1024, vocab_size=4096)

    def memory(shape=shape, **kwargs):
        return make_plan(
            config(**kwargs), world_size=1, num_rows=10, num_targets=80, num_parameters=10**6, shape=shape
        ).memory_bytes

    full = memory(mixed_precision="fp32")
    assert memory(shape=None) == 16 * 10**6
    assert memory(mixed_precision="bf16") < full
    assert memory(mixed_precision="fp32", model={"activation_checkpointing": "full"}) < full
    assert memory(mixed_precision="fp32", batch_size=8) > full


def test_batches_of_an_evaluation():
    assert plan(num_eval_rows=10, batch_size=4).eval_batches == 3
    assert plan(num_eval_rows=10, batch_size=4, eval_={"batch_size": 5}).eval_batches == 2
    assert plan(num_eval_rows=10, batch_size=4, eval_={"max_batches": 1}).eval_batches == 1
    assert plan(num_eval_rows=10, batch_size=4, world_size=2).eval_batches == 2
    assert plan(num_eval_rows=0).eval_batches == 0


def test_a_strategy_for_many_has_no_effect_on_one_and_says_so():
    assert plan(strategy="ddp").warnings == ("trainer.strategy ddp has no effect with one process",)
    assert plan(strategy="ddp", world_size=2).warnings == ()


def test_numbers_stay_exact_where_floats_would_not():
    found = plan(10**12, batch_size=3, num_epochs=10**6)
    assert found.total_rows == 10**18
    assert found.total_steps == -(-(10**18) // 3)
    assert math.isclose(found.epochs, 10**6)
