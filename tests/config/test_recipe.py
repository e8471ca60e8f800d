"""The YAML spelling: what is accepted, what is refused, and in which words."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import math

import pytest

from protolith.config.load import load_config
from protolith.config.schema import TrainConfig
from protolith.errors import InvalidValueError, NotFoundError, UnknownKeyError

PAGE = """\
recipe: pretrain
method: full

model:
  name: meta-llama/Llama-3.1-8B

data:
  path: data/corpus.jsonl
  format: text
  packing: true
  max_seq_length: 2048
  streaming: true

trainer:
  batch_size: 4
  gradient_accumulation: 8
  learning_rate: 3e-4
  num_epochs: 1
  warmup_steps: 1000
  weight_decay: 0.01
  mixed_precision: bf16
  strategy: fsdp

logging:
  backends: [console, tensorboard, wandb]
  project: pretrain-run
  log_every_n_steps: 10

eval:
  every_n_steps: 500
  metrics: [loss, perplexity]

output:
  dir: output/pretrain
"""


def test_a_full_recipe_parses_unchanged(recipe):
    loaded = recipe(base=PAGE)
    config = loaded.config
    assert loaded.spelling == "recipe"
    assert config.trainer.learning_rate == 3e-4
    assert config.trainer.strategy == "fsdp"
    assert config.data.streaming is True
    assert config.data.path == ("data/corpus.jsonl",)
    assert config.logging.backends == ("console", "tensorboard", "wandb")
    assert loaded.origins["trainer.learning_rate"] == "recipe.yaml:17"
    assert "data.seed" not in loaded.origins


def test_evaluation_settings_without_held_out_data_are_warned_about(recipe):
    (warning,) = recipe(base=PAGE).warnings
    assert "eval.every_n_steps and eval.metrics have no effect" in warning
    assert "data.eval_path or data.eval_split" in warning
    assert recipe("  eval_split: 0.1\neval:\n  every_n_steps: 5\n").warnings == ()


def test_defaults_are_those_that_are_promised(recipe):
    config = recipe().config
    trainer, data = config.trainer, config.data
    assert (trainer.batch_size, trainer.gradient_accumulation, trainer.learning_rate) == (4, 1, 3e-4)
    assert (trainer.num_epochs, trainer.max_steps, trainer.max_tokens) == (1, -1, None)
    assert (trainer.betas, trainer.eps, trainer.weight_decay, trainer.max_grad_norm) == (
        (0.9, 0.95),
        1e-8,
        0.01,
        1.0,
    )
    assert (trainer.scheduler, trainer.warmup_steps, trainer.min_lr_ratio) == ("cosine", 0, 0.0)
    assert (trainer.checkpoint_every_n_steps, trainer.save_last, trainer.keep_last) == (500, True, None)
    assert (data.packing, data.max_seq_length, data.streaming, data.num_workers) == (True, 2048, False, 2)
    assert (data.eval_path, data.eval_split, data.seed, trainer.seed) == ((), 0.0, 42, 42)
    assert (config.model.init, config.model.attention, config.model.compile) == ("scratch", "auto", "auto")
    assert config.output.dir == "output/pretrain"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("trainer:\n  learning_rates: 1\n", "recipe.yaml:7: trainer.learning_rates: unknown key (did you mean trainer.learning_rate?)"),
        ("trainer:\n  lr_: 1\n", "recipe.yaml:7: trainer.lr_: unknown key (did you mean trainer.learning_rate?)"),
        ("learning_rate: 1\n", "recipe.yaml:6: learning_rate: unknown key (did you mean trainer.learning_rate?)"),
        ("num-epochs: 1\n", "recipe.yaml:6: num-epochs: unknown key (did you mean trainer.num_epochs?)"),
        ("trainer:\n  num-epochs: 1\n", "recipe.yaml:7: trainer.num-epochs: unknown key (did you mean trainer.num_epochs?)"),
        ("trainer:\n  epochs: 1\n", "recipe.yaml:7: trainer.epochs: unknown key (did you mean trainer.num_epochs?)"),
        ("trainer:\n  max_seq_length: 8\n", "recipe.yaml:7: trainer.max_seq_length: unknown key (did you mean data.max_seq_length?)"),
        ("optim:\n  lr: 1\n", "recipe.yaml:7: optim.lr: unknown key (did you mean trainer.learning_rate?)"),
        ("model.overides:\n  hidden_size: 1\n", "recipe.yaml:6: model.overides: unknown section (did you mean model.overrides?)"),
        ("train:\n  batch_size: 1\n", "recipe.yaml:6: train: unknown section (did you mean trainer?)"),
        ("trainer.batch_size: 1\n", "recipe.yaml:6: trainer.batch_size: unknown key (write batch_size below trainer)"),
        ("mode: pretrain\n", "recipe.yaml:6: mode: this is a word of the TOML spelling (a recipe begins with  recipe: pretrain)"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_line_and_nearest_key(recipe, said, lines, expected):
    """Typing errors never train with defaults (T49)."""
    assert said(recipe, lines) == [expected]
    with pytest.raises(UnknownKeyError):
        recipe(lines)


def test_a_key_near_nothing_is_shown_what_exists(recipe, said):
    (text,) = said(recipe, "output:\n  zzzzqq: 1\n")
    assert "output.zzzzqq: unknown key (known here: dir)" in text


@pytest.mark.parametrize(
    ("section", "line", "expected"),
    [
        ("data", 'packing: "no"', 'data.packing: expected one of true, false, best_fit; got the text "no" (write false)'),
        ("data", "packing: no", 'data.packing: expected one of true, false, best_fit; got the text "no" (write false)'),
        ("data", "packing: 1", "data.packing: expected true, false or a word, got 1 (write true)"),
        ("data", "streaming: yes", 'data.streaming: expected true or false, got the text "yes" (write true)'),
        ("data", "streaming: 0", "data.streaming: expected true or false, got 0 (write false)"),
        ("data", "eval_split: 1", "data.eval_split: must be less than 1, got 1"),
        ("data", "eval_split: -0.1", "data.eval_split: must be at least 0, got -0.1"),
        ("data", "num_workers: -1", "data.num_workers: must be at least 0, got -1"),
        ("data", "max_seq_length: 0", "data.max_seq_length: must be at least 1, got 0"),
        ("data", "eval_path: [a, 3]", "data.eval_path: expected a path or a list of paths, got a list of 2"),
        ("data", 'eval_path: ""', "data.eval_path: a path must not be empty"),
        ("data", "format: json", 'data.format: expected one of text, tokens; got the text "json"'),
        ("trainer", "batch_size: 0", "trainer.batch_size: must be at least 1, got 0"),
        ("trainer", "batch_size: 2.5", "trainer.batch_size: expected a whole number, got 2.5"),
        ("trainer", "batch_size: 4.0", "trainer.batch_size: expected a whole number, got 4.0 (write 4)"),
        ("trainer", "batch_size: true", "trainer.batch_size: expected a whole number, got true"),
        ("trainer", "batch_size:", "trainer.batch_size: expected a whole number, got nothing (null)"),
        ("trainer", "batch_size: 1e308", "trainer.batch_size: expected a whole number, got 1e+308"),
        ("trainer", "batch_size: 99999999999999999999", "trainer.batch_size: must be at most 1000000000000, got 99999999999999999999"),
        ("trainer", 'learning_rate: "3e-4"', 'trainer.learning_rate: expected a number, got the text "3e-4" (write the number without quotes)'),
        ("trainer", "learning_rate: -1e-3", "trainer.learning_rate: must be at least 0, got -0.001"),
        ("trainer", "learning_rate: .nan", "trainer.learning_rate: expected a finite number, got nan"),
        ("trainer", "learning_rate: .inf", "trainer.learning_rate: expected a finite number, got inf"),
        ("trainer", "learning_rate: 1e999", "trainer.learning_rate: expected a finite number, got inf"),
        ("trainer", "learning_rate: true", "trainer.learning_rate: expected a number, got true"),
        ("trainer", "learning_rate: [1]", "trainer.learning_rate: expected a number, got a list of 1"),
        ("trainer", "max_steps: 0", "trainer.max_steps: must be at least 1, or -1 for no limit, got 0"),
        ("trainer", "max_steps: -2", "trainer.max_steps: must be at least 1, or -1 for no limit, got -2"),
        ("trainer", "num_epochs: 0", "trainer.num_epochs: must be at least 1, got 0"),
        ("trainer", "num_epochs: 1.5", "trainer.num_epochs: expected a whole number, got 1.5"),
        ("trainer", "warmup_steps: 010", 'trainer.warmup_steps: expected a whole number, got the text "010" (write the number without quotes and without a leading zero)'),
        ("trainer", "warmup_steps: 1:30", 'trainer.warmup_steps: expected a whole number, got the text "1:30"'),
        ("trainer", "min_lr_ratio: 1.5", "trainer.min_lr_ratio: must be at most 1, got 1.5"),
        ("trainer", "keep_last: 0", "trainer.keep_last: must be at least 1, got 0"),
        ("trainer", "keep_last: -1", "trainer.keep_last: must be at least 1, got -1"),
        ("trainer", "eps: 0", "trainer.eps: must be greater than 0, got 0"),
        ("trainer", "betas: [0.9]", "trainer.betas[1]: required, but not given"),
        ("trainer", "betas: [0.9, 1]", "trainer.betas[1]: must be less than 1, got 1"),
        ("trainer", "betas: 0.9", "trainer.betas: expected a list, got 0.9"),
        ("trainer", "scheduler: cosin", 'trainer.scheduler: expected one of cosine, linear, constant, constant_with_warmup, wsd, inverse_sqrt; got the text "cosin" (did you mean cosine?)'),
        ("trainer", "mixed_precision: no", 'trainer.mixed_precision: expected one of bf16, fp16, fp32; got the text "no" (write fp32 for full precision)'),
        ("trainer", "mixed_precision: false", "trainer.mixed_precision: expected one of bf16, fp16, fp32; got false (write fp32 for full precision)"),
        ("trainer", "on_nonfinite: ignore", 'trainer.on_nonfinite: expected one of stop, skip; got the text "ignore"'),
        ("trainer", "seed: -1", "trainer.seed: must be at least 0, got -1"),
        ("eval", "metrics: [loss, bleu]", 'eval.metrics[1]: expected one of loss, perplexity; got the text "bleu"'),
        ("eval", "metrics: loss", 'eval.metrics: expected a list, got the text "loss" (write ["loss"])'),
        ("eval", "metrics: [loss, loss]", "eval.metrics names one thing twice"),
        ("logging", "backends: [mlflow]", 'logging.backends[0]: expected one of console, tensorboard, wandb; got the text "mlflow"'),
        ("logging", "backends: console, tensorboard", 'logging.backends: expected a list, got the text "console, tensorboard" (write ["console", "tensorboard"])'),
        ("logging", "run_name: 12", 'logging.run_name: expected text, got 12 (write it in quotes: "12")'),
        ("output", 'dir: ""', "output.dir: must not be empty"),
        ("output", "dir: [a]", "output.dir: expected text, got a list of 1"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_told_with_key_line_and_what_was_found(recipe, said, section, line, expected):
    """Wrong types and impossible values are loud (T49, T42)."""
    base = "model:\n  name: m\ndata:\n  path: c.jsonl\n"
    lines = f"  {line}\n" if section == "data" else f"{section}:\n  {line}\n"
    number = 5 if section == "data" else 6
    assert said(recipe, lines, base=base) == [f"recipe.yaml:{number}: {expected}"]
    with pytest.raises(InvalidValueError):
        recipe(lines, base=base)


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "3E-4", "0.0003", ".0003", "+3e-4", "0.3e-3"])
def test_every_way_of_writing_a_number_is_a_number(recipe, text):
    """3e-4, which YAML 1.1 reads as text, is a number (T49)."""
    assert recipe(f"trainer:\n  learning_rate: {text}\n").config.trainer.learning_rate == 3e-4


def test_edges_that_must_work(recipe):
    config = recipe(
        "  num_workers: 0\n  eval_path: null\ntrainer:\n  learning_rate: 0\n  weight_decay: 0\n  max_grad_norm: 0\n"
        "  max_steps: -1\n  keep_last: null\n  checkpoint_every_n_steps: null\n"
    ).config
    assert config.trainer.learning_rate == 0
    assert config.trainer.max_grad_norm == 0
    assert config.data.num_workers == 0
    assert config.data.eval_path == ()
    assert config.trainer.num_epochs == 1
    assert config.trainer.checkpoint_every_n_steps is None


def test_large_counts_may_be_written_with_an_exponent_or_underscores(recipe):
    config = recipe("trainer:\n  max_tokens: 1e9\n  warmup_steps: 1_000\n").config
    assert config.trainer.max_tokens == 1_000_000_000
    assert config.trainer.warmup_steps == 1000


@pytest.mark.parametrize("value", ["a.jsonl", "[a.jsonl]"])
def test_a_path_is_one_text_or_a_list(recipe, value):
    config = recipe(base=f"model: {{name: m}}\ndata: {{path: {value}}}\n").config
    assert config.data.path == ("a.jsonl",)


@pytest.mark.parametrize(
    ("lines", "epochs"),
    [
        ("", 1),
        ("trainer: {max_steps: 5}\n", None),
        ("trainer: {max_tokens: 5000}\n", None),
        ("trainer: {max_steps: -1}\n", 1),
        ("trainer: {max_steps: 5, num_epochs: 1}\n", 1),
        ("trainer: {max_steps: 5, num_epochs: null}\n", None),
    ],
)
def test_epochs_give_way_to_another_limit_unless_they_are_given(recipe, lines, epochs):
    assert recipe(lines).config.trainer.num_epochs == epochs


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("  eval_path: e.jsonl\n  eval_split: 0.1\n", ["recipe.yaml:7: data.eval_path and data.eval_split are given together (held-out data comes from one of them)"]),
        ("trainer: {warmup_steps: 3, warmup_ratio: 0.1}\n", ["recipe.yaml:6: trainer.warmup_steps and trainer.warmup_ratio are given together (give one of them)"]),
        ("trainer: {num_epochs: null}\n", ["recipe.yaml:6: no limit is set (trainer.num_epochs, trainer.max_steps or trainer.max_tokens): the run would never end (give one)"]),
        ("trainer: {global_batch_size: 8, gradient_accumulation: 2}\n", ["recipe.yaml:6: trainer.global_batch_size and trainer.gradient_accumulation are given together (give one of them: accumulation follows from the global batch)"]),
        ("trainer: {global_batch_size: 2}\n", ["recipe.yaml:6: trainer.global_batch_size = 2 is smaller than trainer.batch_size = 4 (the global batch is made of whole batches of each device)"]),
        ("  weights: [1, 2]\n", ["recipe.yaml:6: data.weights has 2 entries and data.path 1 (give one weight for each path)"]),
        ("  weights: [0]\n", ["recipe.yaml:6: data.weights: all weights are 0"]),
        ("  weights: [-1]\n", ["recipe.yaml:6: data.weights[0]: must be at least 0, got -1"]),
        ("  sources: [{path: a}]\n", ["recipe.yaml:5: data.path and data.sources are given together (each source has its own path and weight)"]),
    ],
)  # fmt: skip
def test_keys_that_contradict_each_other_are_told_together(recipe, said, lines, expected):
    assert said(recipe, lines) == expected


def test_a_mixture_of_sources_replaces_the_path(recipe, said):
    base = "model: {name: m}\ndata:\n  sources:\n    - {path: a, weight: 2}\n    - path: [b, c]\n      name: second\n"
    sources = recipe(base=base).config.data.sources
    assert [(s.path, s.weight, s.name) for s in sources] == [(("a",), 2, None), (("b", "c"), 1.0, "second")]
    bad = base.replace("name: second", "wieght: 3")
    assert said(recipe, base=bad) == [
        "recipe.yaml:6: data.sources[1].wieght: unknown key (did you mean weight?)"
    ]


def test_all_faults_are_told_at_once_in_the_order_of_the_file(recipe, said):
    found = said(
        recipe,
        "  eval_split: 0.5\n  eval_path: e\n  seed: x\ntrainer:\n  learning_rates: 1\n  batch_size: 0\n  batch_size: 2\n"
        "  warmup_steps: 2\n  warmup_ratio: 0.5\nevaluation:\n  x: 1\n",
    )
    assert [text.split(": ")[0] for text in found] == [f"recipe.yaml:{n}" for n in (6, 8, 10, 11, 12, 14, 15)]
    assert "data.eval_path and data.eval_split" in found[0]
    assert "given twice, first on line 11" in found[4]
    assert "trainer.warmup_steps and trainer.warmup_ratio" in found[5]


def test_missing_keys_are_named(recipe, said):
    assert said(recipe, base="recipe: pretrain\n") == [
        "recipe.yaml: model.name: required, but not given",
        "recipe.yaml: data.path: required: name at least one file or folder",
    ]
    (text,) = said(recipe, base="model:\n  init: scratch\ndata:\n  path: c\n")
    assert text == "recipe.yaml:1: model.name: required, but not given"


def test_only_this_recipe_and_full_training_exist(recipe, said):
    (text,) = said(recipe, "method: lora\n")
    assert "LoRA/QLoRA are not applicable" in text
    assert "no pre-trained weights to adapt" in text
    assert said(recipe, base="recipe: sft\nmodel: {name: m}\ndata: {path: c}\n") == [
        'recipe.yaml:1: recipe: expected pretrain, got the text "sft" (Protolith pretrains and has no other recipe)'
    ]


def test_a_section_that_is_no_section_is_told_once(recipe, said):
    assert said(recipe, base="model: my-model\ndata: c.jsonl\ntrainer: 5\n") == [
        'recipe.yaml:1: model: expected a section of keys and values, got the text "my-model" (did you mean model.name?)',
        'recipe.yaml:2: data: expected a section of keys and values, got the text "c.jsonl" (did you mean data.path?)',
        "recipe.yaml:3: trainer: expected a section of keys and values, got 5",
    ]


def test_blank_sections_have_their_defaults(recipe):
    config = recipe("trainer:\nfsdp:\noutput:\n").config
    assert config.fsdp == {}
    assert config.trainer.batch_size == 4


def test_overrides_are_free_but_must_survive_json(recipe, said):
    config = recipe(
        base="model: {name: m, overrides: {num_hidden_layers: 4, rope: {theta: 1e4}}}\ndata: {path: c}\n"
    ).config
    assert config.model.overrides == {"num_hidden_layers": 4, "rope": {"theta": 10000.0}}
    (text,) = said(recipe, base="model: {name: m, overrides: {a: [.inf]}}\ndata: {path: c}\n")
    assert "model.overrides: expected finite numbers, got inf" in text


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 101])
def test_a_name_must_be_fit_for_a_folder(recipe, said, name):
    (text,) = said(recipe, f'name: "{name}"\n')
    assert text.startswith("recipe.yaml:6: name: a name must")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "trainer: {scheduler: constant, warmup_steps: 5}\n",
            "trainer.warmup_steps has no effect with scheduler constant",
        ),
        ("trainer: {scheduler: constant_with_warmup}\n", "has no warmup"),
        (
            "trainer: {scheduler: inverse_sqrt, warmup_steps: 5, decay_steps: 3}\n",
            "trainer.decay_steps has no effect",
        ),
        ("trainer: {scheduler: constant, min_lr_ratio: 0.1}\n", "trainer.min_lr_ratio has no effect"),
        ("trainer: {checkpoint_every_n_steps: null, save_last: false}\n", "no checkpoint will be saved"),
        ("trainer: {checkpoint_every_n_steps: 400, keep_every: 500, keep_last: 1}\n", "no multiple of"),
        ("trainer: {keep_every: 500}\n", "trainer.keep_every has no effect"),
        ("logging: {project: p}\n", "logging.project has no effect without the wandb backend"),
        ("  format: tokens\n  text_field: body\n", "data.text_field has no effect with format tokens"),
    ],
)
def test_a_setting_without_effect_is_warned_about(recipe, lines, words):
    (warning,) = recipe(lines).warnings
    assert words in warning


def test_a_config_survives_json(recipe, write):
    loaded = recipe("trainer: {max_steps: 7, betas: [0.9, 0.99]}\nname: run one\n")
    again = TrainConfig.model_validate(loaded.config.to_dict())
    assert again == loaded.config
    assert TrainConfig.model_validate_json(loaded.config.model_dump_json()) == loaded.config
    saved = write(loaded.config.model_dump_json(indent=1), "config.json")
    assert load_config(saved).config == loaded.config


def test_a_validated_config_cannot_be_changed(recipe):
    config = recipe().config
    with pytest.raises(ValueError, match="frozen"):
        config.trainer.batch_size = 9


def test_from_file_is_the_same_reader(recipe, write):
    assert TrainConfig.from_file(write(PAGE)) == recipe(base=PAGE).config
    assert TrainConfig.from_file(write(PAGE), ["trainer.seed=1"]).trainer.seed == 1


def test_a_schema_made_in_python_names_the_nearest_key():
    with pytest.raises(ValueError, match=r"did you mean learning_rate\?") as caught:
        TrainConfig(model={"name": "m"}, data={"path": "c"}, trainer={"learning_rates": 1, "batch_size": 0})
    assert len(caught.value.errors()) == 2
    assert math.isclose(TrainConfig(model={"name": "m"}, data={"path": "c"}).trainer.learning_rate, 3e-4)


def test_a_missing_file_is_not_found():
    with pytest.raises(NotFoundError) as caught:
        load_config("no/such/recipe.yaml")
    assert caught.value.where == "no/such/recipe.yaml"
    assert caught.value.exit_code == 3


def test_a_folder_or_a_name_without_a_known_ending_is_refused(write, said, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    assert said(load_config, tmp_path / "folder.yaml")[0].endswith("this is a folder, not a config file")
    assert "name it .yaml or .toml" in said(load_config, write(PAGE, "recipe.txt"))[0]
