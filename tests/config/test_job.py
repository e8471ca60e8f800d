"""The TOML spelling: its names, its defaults, what it refuses."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import pytest

from protolith.config.job import JOB_KEYS, TABLE
from protolith.config.recipe import recipe_spelling
from protolith.config.schema import TrainConfig
from protolith.errors import UnknownKeyError

FULL = """\
mode = "pretrain"
name = "tinystories"
max_steps = 250
max_tokens = 1_000_000
seed = 7

[model]
name = "Qwen/Qwen3-0.6B"
attention = "sdpa"
compile = false
mixed_precision = "fp32"

[model.overrides]
num_hidden_layers = 2

[data]
paths = ["datasets/tinystories/train"]
seq_len = 512
batch_size = 64
micro_batch_size = 8
shuffle = true
num_workers = 0

[val]
interval = 50
eval_on_start = true

[val.data]
paths = ["datasets/tinystories/val"]

[optim]
type = "adamw"
lr = 2e-3
weight_decay = 0.1
betas1 = 0.8
betas2 = 0.99
max_norm = 0.5

[scheduler]
type = "cosine"
warmup_steps = 20
min_lr = 2e-4

[ckpt]
interval = 100
keep_last = 2
keep_interval = 200

[deployment]
num_train_gpus = 8

[monitors.wandb]
project = "stories"
name = "first"

[monitors.tensorboard]
"""


def test_every_key_lands_where_it_belongs(job):
    loaded = job(base=FULL)
    config, trainer = loaded.config, loaded.config.trainer
    assert (loaded.spelling, loaded.warnings) == ("job", ())
    assert (config.name, trainer.max_steps, trainer.max_tokens, trainer.num_epochs) == (
        "tinystories",
        250,
        10**6,
        None,
    )
    assert (trainer.seed, config.data.seed) == (7, 7)
    assert (config.model.name, config.model.attention, config.model.compile) == (
        "Qwen/Qwen3-0.6B",
        "sdpa",
        False,
    )
    assert (config.model.init, config.model.overrides) == ("scratch", {"num_hidden_layers": 2})
    assert (trainer.mixed_precision, trainer.num_gpus) == ("fp32", 8)
    assert (config.data.format, config.data.path) == ("tokens", ("datasets/tinystories/train",))
    assert (config.data.max_seq_length, trainer.global_batch_size, trainer.batch_size) == (512, 64, 8)
    assert (config.eval.every_n_steps, config.eval.on_start) == (50, True)
    assert config.data.eval_path == ("datasets/tinystories/val",)
    assert (trainer.learning_rate, trainer.weight_decay, trainer.betas) == (2e-3, 0.1, (0.8, 0.99))
    assert (trainer.max_grad_norm, trainer.scheduler, trainer.warmup_steps) == (0.5, "cosine", 20)
    assert trainer.min_lr_ratio == pytest.approx(0.1)
    assert (trainer.checkpoint_every_n_steps, trainer.keep_last, trainer.keep_every) == (100, 2, 200)
    assert config.logging.backends == ("console", "tensorboard", "wandb")
    assert (config.logging.project, config.logging.run_name) == ("stories", "first")
    assert config.output.dir == "output/tinystories"
    assert loaded.origins["trainer.learning_rate"] == "pretrain.toml:33"
    assert loaded.names["trainer.learning_rate"] == "optim.lr"
    assert TrainConfig.model_validate(config.to_dict()) == config


def test_its_own_defaults(job):
    config = job().config
    trainer = config.trainer
    assert (trainer.learning_rate, trainer.scheduler, trainer.warmup_steps) == (1e-3, "linear", 10)
    assert (trainer.max_grad_norm, trainer.betas, trainer.batch_size) == (1.0, (0.9, 0.95), 1)
    assert (trainer.global_batch_size, config.data.max_seq_length) == (128, 2048)
    assert (config.data.seed, trainer.seed, config.output.dir) == (42, 42, "output/pretrain")
    assert (config.logging.log_every_n_steps, config.logging.backends) == (1, ("console",))


def test_the_folder_of_the_run(job):
    assert (
        job(
            base='mode = "pretrain"\noutput_dir = "here"\nmax_steps = 1\nmodel.name = "m"\ndata.paths = "d"\n'
        ).config.output.dir
        == "here"
    )
    assert job('[run]\nname = "r1"\n').config.output.dir == "output/r1"


def test_seeds(job):
    config = job("seed = 3\n").config  # under [data]
    assert (config.data.seed, config.trainer.seed) == (3, 42)
    config = job("seed = 3\n", ["seed=4"]).config
    assert (config.data.seed, config.trainer.seed) == (3, 4)


@pytest.mark.parametrize(
    "lines", ['[val]\npaths = "v"\n', '[val]\ndata.paths = ["v"]\n', '[val.data]\npaths = ["v"]\n']
)
def test_validation_paths_under_val_or_val_data(job, lines):
    assert job(lines).config.data.eval_path == ("v",)


@pytest.mark.parametrize(
    ("lines", "scheduler", "warmup"),
    [
        ('type = "constant"', "constant", 0),
        ('type = "constant"\nwarmup_steps = 5', "constant_with_warmup", 5),
        ('type = "wsd"', "wsd", 10),
        ('type = "linear"\nwarmup_steps = 0', "linear", 0),
        ("warmup_steps = 3", "linear", 3),
    ],
)
def test_schedules(job, lines, scheduler, warmup):
    loaded = job(f"[scheduler]\n{lines}\n")
    assert (loaded.config.trainer.scheduler, loaded.config.trainer.warmup_steps) == (scheduler, warmup)
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("[eval]\ninterval = 3\n", "pretrain.toml:7: [eval] is not part of a pretraining config (use [val])"),
        ("[optim]\nlearning_rate = 1\n", "pretrain.toml:8: optim.learning_rate: unknown key (did you mean optim.lr?)"),
        ("[trainer]\nmax_grad_norm = 1\n", "pretrain.toml:8: trainer.max_grad_norm: unknown key (did you mean optim.max_norm?)"),
        ("[optimizer]\nlr = 1\n", "pretrain.toml:7: optimizer: unknown section (did you mean optim?)"),
        ("max_seq_length = 3\n", "pretrain.toml:7: data.max_seq_length: unknown key (did you mean data.seq_len?)"),
        ("warmup_steps = 3\n", "pretrain.toml:7: data.warmup_steps: unknown key (did you mean scheduler.warmup_steps?)"),
        ("batch_size = 0\n", "pretrain.toml:7: data.batch_size: must be at least 1, got 0"),
        ("batch_size = 2.5\n", "pretrain.toml:7: data.batch_size: expected a whole number, got 2.5"),
        ('seq_len = "512"\n', 'pretrain.toml:7: data.seq_len: expected a whole number, got the text "512" (write the number without quotes)'),
        ('batch_size = 2\nmicro_batch_size = 4\n', "pretrain.toml:7: data.batch_size = 2 is smaller than data.micro_batch_size = 4 (the global batch is made of whole batches of each device)"),
        ("weights = [1.0, 2.0]\n", "pretrain.toml:7: data.weights has 2 entries and data.paths 1 (give one weight for each path)"),
        ("[optim]\nlr = nan\n", "pretrain.toml:8: optim.lr: expected a finite number, got nan"),
        ("[optim]\nbetas1 = 1.0\n", "pretrain.toml:8: optim.betas1: must be less than 1, got 1.0"),
        ('[optim]\nbetas2 = "a"\n', 'pretrain.toml:8: optim.betas2: expected a number, got the text "a"'),
        ('[scheduler]\ntype = "inverse_sqrt"\n', 'pretrain.toml:8: scheduler.type: expected one of linear, constant, cosine, wsd; got the text "inverse_sqrt"'),
        ('[scheduler]\ntype = "cos"\n', 'pretrain.toml:8: scheduler.type: expected one of linear, constant, cosine, wsd; got the text "cos" (did you mean cosine?)'),
        ("[scheduler]\nmin_lr = 1.0\n", "pretrain.toml:8: scheduler.min_lr: must be at most optim.lr = 0.001, got 1.0"),
        ("[scheduler]\nmin_lr = -1\n", "pretrain.toml:8: scheduler.min_lr: must be at least 0 and finite, got -1"),
        ("[scheduler]\nmin_lr = true\n", "pretrain.toml:8: scheduler.min_lr: expected a number, got true"),
        ("[ckpt]\nkeep_last = 0\n", "pretrain.toml:8: ckpt.keep_last: must be at least 1, got 0"),
        ('[val]\npaths = "a"\ndata.paths = "b"\n', "pretrain.toml:9: val.paths and val.data.paths are one setting, and both are given (keep one of them)"),
        ("[model.x]\ny = 1\n", "pretrain.toml:7: model.x: unknown section (known here: name, tokenizer, overrides, attention, compile, activation_checkpointing, mixed_precision)"),
        ("[model.overides]\nhidden_size = 1\n", "pretrain.toml:7: model.overides: unknown section (did you mean model.overrides?)"),
        ("[monitors.mlflow]\n", "pretrain.toml:7: monitors.mlflow: unknown section (known here: wandb, tensorboard)"),
        ("shuffle = 1979-05-27\n", "pretrain.toml:7: data.shuffle: expected one of true, false, blocks; got a date"),
    ],
)  # fmt: skip
def test_faults_are_told_in_its_own_names(job, said, lines, expected):
    assert said(job, lines) == [expected]


@pytest.mark.parametrize("section", ["eval", "inference", "weight_broadcast"])
def test_sections_of_other_modes_are_refused_with_what_to_use(job, said, section):
    (text,) = said(job, f"[{section}]\n")
    assert f"[{section}] is not part of a pretraining config" in text
    assert "use [val]" in text
    with pytest.raises(UnknownKeyError):
        job(f"[{section}]\nx = 1\n")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("", 'mode: required, but not given (begin the file with  mode = "pretrain")'),
        ('mode = "sft"', 'mode: expected pretrain, got the text "sft" (Protolith runs pretraining only)'),
        ('mode = "pre-train"', 'mode: expected pretrain, got the text "pre-train" (did you mean pretrain?)'),
        ("mode = 3", "mode: expected pretrain, got 3 (Protolith runs pretraining only)"),
    ],
)
def test_another_mode_is_never_run_as_this_one(job, said, first, expected):
    """A file that says another mode, or none, is refused, and nothing else in it is judged (T60)."""
    (text,) = said(job, base=f"{first}\nnonsense = 1\n")
    assert text.endswith(expected)


def test_what_is_required_is_named(job, said):
    assert said(job, base='mode = "pretrain"\n') == [
        "pretrain.toml: max_steps: required, but not given (say how many optimizer steps to train)",
        "pretrain.toml: model.name: required, but not given",
        "pretrain.toml: data.paths: required: name at least one file or folder",
    ]


def test_no_limit_is_told_without_epochs(job, said):
    (text,) = said(job, base='mode = "pretrain"\nmax_steps = -1\nmodel.name = "m"\ndata.paths = "d"\n')
    assert "no limit is set (max_steps or max_tokens)" in text


def test_words_that_belong_to_the_recipe_have_their_own_sentence(job, said):
    assert (
        'begins with  mode = "pretrain"'
        in said(
            job,
            base='mode = "pretrain"\nrecipe = "pretrain"\nmax_steps = 1\nmodel.name = "m"\ndata.paths = "d"\n',
        )[0]
    )
    assert (
        "always starts from random weights"
        in said(
            job,
            base='mode = "pretrain"\nmax_steps = 1\nmodel.name = "m"\nmodel.init = "scratch"\ndata.paths = "d"\n',
        )[0]
    )


def test_interval_without_validation_data_is_warned_about(job):
    (warning,) = job("[val]\ninterval = 3\n").warnings
    assert warning == "val.interval has no effect: there is no held-out data; give val.data.paths"


def test_an_inline_table_and_an_unused_table_work(job):
    config = job(
        base='mode = "pretrain"\nmax_steps = 3\nmodel = { name = "m", compile = true }\ndata = { paths = ["a"] }\n[val]\n[ckpt]\n'
    ).config
    assert config.model.compile is True


def test_every_canonical_name_in_the_table_exists():
    canonical = {*recipe_spelling().keys, "trainer.betas.0", "trainer.betas.1"}
    assert set(JOB_KEYS.values()) <= canonical
    assert len({row.user for row in TABLE}) == len(TABLE)
