"""``--set``, the arguments of the Python call, and what is not available yet."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from protolith.config.availability import check_available
from protolith.config.load import DEFAULT_EPOCHS, config_from_kwargs, load_config
from protolith.errors import ConfigError, NotAvailableError, UnknownKeyError, UsageError

# --set


def test_set_changes_one_key_in_the_names_of_the_recipe(recipe):
    loaded = recipe(
        "trainer:\n  batch_size: 2\n",
        [
            "trainer.batch_size=8",
            "trainer.learning_rate=3e-4",
            "model.overrides.num_hidden_layers=2",
            "data.path=[a.jsonl, b.jsonl]",
            "eval.sample_prompts=['Once, upon', x]",
            "data.eval_path=held=out.jsonl",
            "output.dir = runs/1 ",
        ],
    )
    config = loaded.config
    assert (config.trainer.batch_size, config.trainer.learning_rate) == (8, 3e-4)
    assert config.model.overrides == {"num_hidden_layers": 2}
    assert config.data.path == ("a.jsonl", "b.jsonl")
    assert config.eval.sample_prompts == ("Once, upon", "x")
    assert config.data.eval_path == ("held=out.jsonl",)
    assert config.output.dir == "runs/1"
    assert loaded.origins["trainer.batch_size"] == "--set trainer.batch_size=8"


def test_set_changes_one_key_in_the_names_of_toml(job):
    config = job(
        "[optim]\nlr = 1.0\n",
        ["optim.lr=3e-4", "scheduler.type=cosine", 'data.paths=["x", "y"]', "max_steps=7"],
    ).config
    assert (config.trainer.learning_rate, config.trainer.scheduler, config.trainer.max_steps) == (
        3e-4,
        "cosine",
        7,
    )
    assert config.data.path == ("x", "y")


def test_the_last_set_of_a_key_wins(recipe):
    assert recipe("", ["trainer.seed=1", "trainer.seed=2"]).config.trainer.seed == 2


def test_a_fault_in_set_is_told_as_it_was_typed(recipe, job, said):
    assert said(recipe, "", ["trainer.lr=1"]) == [
        "--set trainer.lr=1: trainer.lr: unknown key (did you mean trainer.learning_rate?)"
    ]
    assert said(recipe, "", ["trainer.batch_size=x"]) == [
        '--set trainer.batch_size=x: trainer.batch_size: expected a whole number, got the text "x"'
    ]
    assert said(job, "", ["optim.lr="]) == ["--set optim.lr=: optim.lr: expected a number, got an empty text"]
    assert "--set data.path=[a" in said(recipe, "", ["data.path=[a"])[0]


@pytest.mark.parametrize("text", ["trainer.seed", "=3", "trainer.=3", ".seed=3", "a..b=1", ""])
def test_a_set_that_is_no_assignment_is_a_usage_error(recipe, text):
    with pytest.raises(UsageError, match="is not key=value"):
        recipe("", [text])


def test_a_set_inside_a_value_is_a_usage_error(recipe):
    with pytest.raises(UsageError, match=r"model\.name is the text .*, not a section"):
        recipe("", ["model.name.x=1"])


# Python


def test_the_call_of_the_manual():
    loaded = config_from_kwargs(
        model="meta-llama/Llama-3.1-8B", dataset="data/corpus.jsonl", format="text", num_epochs=1, learning_rate=3e-4, batch_size=4
    )  # fmt: skip
    config = loaded.config
    assert (config.model.name, config.data.path) == ("meta-llama/Llama-3.1-8B", ("data/corpus.jsonl",))
    assert (config.trainer.num_epochs, config.trainer.batch_size, config.output.dir) == (
        1,
        4,
        "output/pretrain",
    )
    assert loaded.spelling == "call"


def test_paths_may_be_path_objects(tmp_path):
    config = config_from_kwargs(model=tmp_path, dataset=[tmp_path / "a", "b"], output_dir=Path("out")).config
    assert config.model.name == str(tmp_path)
    assert config.data.path == (str(tmp_path / "a"), "b")
    assert config.output.dir == "out"


def test_epochs_that_were_not_asked_for_give_way_to_steps():
    assert DEFAULT_EPOCHS == 1
    assert config_from_kwargs(model="m", dataset="d").config.trainer.num_epochs == 1
    assert config_from_kwargs(model="m", dataset="d", max_steps=5).config.trainer.num_epochs is None
    assert (
        config_from_kwargs(model="m", dataset="d", max_steps=5, num_epochs=1).config.trainer.num_epochs == 1
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"learning_rates": 1}, "learning_rates: unknown argument (did you mean learning_rate?)"),
        ({"lr_": 1}, "lr_: unknown argument (did you mean learning_rate?)"),
        ({"epochs": 1}, "epochs: unknown argument (did you mean num_epochs?)"),
        ({"max_seq_length": 8}, "max_seq_length: unknown argument (it is data.max_seq_length: write a config and call pretrain(config=...))"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number, got 2.5"),
        ({"batch_size": True}, "batch_size: expected a whole number, got true"),
        ({"learning_rate": "3e-4"}, 'learning_rate: expected a number, got the text "3e-4" (write the number without quotes)'),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number, got nan"),
        ({"learning_rate": None}, "learning_rate: expected a number, got nothing (null)"),
        ({"format": "csv"}, 'format: expected one of text, tokens; got the text "csv"'),
        ({"dataset": None}, "dataset: required: name at least one file or folder"),
        ({"dataset": 7}, "dataset: expected a path or a list of paths, got 7"),
        ({"model": None}, "model: required, but not given"),
        ({"warmup_steps": 1, "warmup_ratio": 0.5}, "warmup_steps and warmup_ratio are given together (give one of them)"),
        ({"scheduler": "cosin"}, 'scheduler: expected one of cosine, linear, constant, constant_with_warmup, wsd, inverse_sqrt; got the text "cosin" (did you mean cosine?)'),
    ],
)  # fmt: skip
def test_a_fault_in_the_call_is_told_by_argument(said, arguments, expected):
    """The same faults, the same words, for the Python call (T49)."""
    assert said(config_from_kwargs, **{"model": "m", "dataset": "d", **arguments}) == [
        f"pretrain(): {expected}"
    ]


def test_all_faults_of_a_call_are_told_at_once(said):
    found = said(config_from_kwargs, lr=1, batch_size=0)
    assert found == [
        "pretrain(): lr: unknown argument (did you mean learning_rate?)",
        "pretrain(): model: required, but not given",
        "pretrain(): batch_size: must be at least 1, got 0",
        "pretrain(): dataset: required: name at least one file or folder",
    ]


def test_an_error_keeps_its_problems_across_processes(recipe):
    with pytest.raises(ConfigError) as caught:
        recipe("trainer:\n  lr: 1\n  batch_size: 0\n")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, UnknownKeyError)
    assert [str(p) for p in again.problems] == [str(p) for p in caught.value.problems]
    told = again.to_dict()
    assert told["where"] == "recipe.yaml:7"
    assert [p["where"] for p in told["problems"]] == ["recipe.yaml:8"]


# not available yet


def test_an_ordinary_config_is_available(recipe, job):
    check_available(recipe().config)
    check_available(recipe("  packing: false\n  eval_split: 0.1\ntrainer: {strategy: ddp, num_gpus: 2}\n"))
    check_available(job())


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ("  format: tokens\n  eval_split: 0.1\n", "data.eval_split", "splitting token shards"),
        ("trainer: {strategy: deepspeed}\n", "trainer.strategy", "strategy deepspeed"),
        ("trainer: {strategy: deepspeed}\n", "trainer.strategy", "strategy deepspeed"),
        ("trainer: {num_nodes: 2}\n", "trainer.num_nodes", "several machines"),
        ("fsdp: {x: 1}\n", "fsdp", "FSDP"),
        ("deepspeed: {zero: 1}\n", "deepspeed", "DeepSpeed"),
        ("output: {dir: 's3://bucket/run'}\n", "output.dir", "s3:// storage"),
    ],
)  # fmt: skip
def test_settings_of_later_parts_are_refused_and_never_ignored(recipe, lines, key, words):
    loaded = recipe(lines)
    with pytest.raises(NotAvailableError) as caught:
        check_available(loaded)
    assert caught.value.message.startswith(f"{key}: ")
    assert words in caught.value.message
    assert "is not available yet" in caught.value.message
    assert caught.value.where.startswith("recipe.yaml:")
    with pytest.raises(NotAvailableError):
        check_available(loaded.config)


def test_what_is_not_available_is_told_in_the_names_of_the_file(job):
    loaded = job("[deployment]\nnum_train_nodes = 8\n")
    with pytest.raises(NotAvailableError) as caught:
        check_available(loaded)
    assert [str(problem) for problem in caught.value.problems] == [
        "pretrain.toml:8: deployment.num_train_nodes: training on several machines is not available yet (use 1)",
    ]


def test_relative_and_home_paths_are_left_as_they_are(recipe):
    config = recipe(base="model: {name: ./m}\ndata: {path: [../a.jsonl, ~/b]}\n").config
    assert config.model.name == "./m"
    assert config.data.path == ("../a.jsonl", "~/b")


def test_a_file_is_named_as_the_user_named_it(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("model: {name: m}\ndata: {path: c}\nx: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.where == f"{path}:3"
