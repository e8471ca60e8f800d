"""The sections of the one schema, in the spelling of the YAML recipe.

Every key has its type, its default and one sentence that says what it does: the reference pages and the JSON
schemas are made from these lines. Rules between keys stand in ``checks.py``; the names of the TOML spelling
in ``job.py``.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from protolith.config.fields import (
    MAX_COUNT,
    Count,
    CountOrZero,
    Limit,
    ManyOf,
    Name,
    NonNegative,
    NoNumber,
    PairOfBetas,
    Paths,
    Positive,
    Seed,
    Share,
    Shuffle,
    Table,
    Text,
    TokenCount,
    fault,
)


class Section(BaseModel):
    """Base of all sections: strict types, no unknown keys, no assignment after validation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=False)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_nearest_key(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Pydantic's "extra inputs are not permitted" becomes "unknown key" with the nearest known one."""
        try:
            return handler(data)
        except ValidationError as error:
            lines = [cls._explain(line) for line in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(cls.__name__, lines)

    @classmethod
    def _explain(cls, line: Any) -> InitErrorDetails:
        kind: str | PydanticCustomError = line["type"]
        if kind == "extra_forbidden" and len(line["loc"]) == 1:
            near = difflib.get_close_matches(str(line["loc"][0]), cls.model_fields, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(cls.model_fields)
            kind = fault(f"unknown key; {hint}", hint)
        elif kind == "protolith":
            kind = PydanticCustomError("protolith", "{text}", line["ctx"])
        details = InitErrorDetails(type=kind, loc=line["loc"], input=line["input"])
        if "ctx" in line and isinstance(kind, str):
            details["ctx"] = line["ctx"]
        return details


class Source(Section):
    """One source of a mixture."""

    path: Annotated[Paths, Field(min_length=1, description="files, folders or patterns of this source")]
    weight: Annotated[
        NonNegative, Field(description="share of the tokens, relative to the other sources; 0: never")
    ] = 1.0
    name: Annotated[Name | None, Field(description="name in metrics and ledger; default: from the path")] = (
        None
    )


class Stage(Section):
    """New weights of a mixture, from a step on. Each source goes on where it stands."""

    from_step: Annotated[int, Field(ge=2, le=MAX_COUNT, description="first step with these weights")]
    weights: Annotated[
        ManyOf[NonNegative],
        Field(description="share of the tokens of each source, in the order of the sources"),
    ]


class ModelConfig(Section):
    """Which architecture, and how it starts."""

    name: Annotated[
        Text,
        Field(
            description=(
                "a folder with config.json and tokenizer, a name in the model cache, or a hub id that can "
                "be reached"
            )
        ),
    ]
    tokenizer: Annotated[
        Text | None, Field(description="another folder with tokenizer.json; default: the one of name")
    ] = None
    init: Annotated[
        Literal["scratch", "pretrained"],
        Field(
            description=(
                "scratch: random weights, only config and tokenizer are read; pretrained: go on from "
                "safetensors"
            )
        ),
    ] = "scratch"
    overrides: Annotated[
        Table, Field(description="keys of the model's config.json to replace, such as num_hidden_layers")
    ] = {}
    attention: Annotated[
        Literal["auto", "eager", "sdpa", "flash", "flex"],
        Field(description="attention implementation; auto: the best one here"),
    ] = "auto"
    compile: Annotated[
        Literal["auto", True, False],
        NoNumber,
        Field(description="torch.compile; auto: when the run is long enough to earn the compile time back"),
    ] = "auto"
    activation_checkpointing: Annotated[
        Literal["none", "full"],
        Field(
            description="full: recompute each layer in the backward pass, which saves memory and costs time"
        ),
    ] = "none"


class DataConfig(Section):
    """What is read, and how it becomes rows."""

    path: Annotated[
        Paths,
        Field(
            description=(
                "files, folders, patterns or URLs such as s3://bucket/folder; one text or a list (required "
                "unless sources are given)"
            )
        ),
    ] = ()
    format: Annotated[
        Literal["text", "tokens"],
        Field(
            description=(
                "text: JSONL (also .gz, .zst) or Parquet; tokens: folders of .ds shards written by datatrove"
            )
        ),
    ] = "text"
    text_field: Annotated[
        Text,
        Field(
            description=(
                "field of a record, or column, that holds the text; with the default, content is read where "
                "text is missing"
            )
        ),
    ] = "text"
    packing: Annotated[
        Literal[True, False, "best_fit"],
        NoNumber,
        Field(
            description=(
                "true: rows are windows over all tokens; false: one document a row, cut or padded; "
                "best_fit: whole documents packed"
            )
        ),
    ] = True
    max_seq_length: Annotated[int, Field(ge=1, le=2**24, description="row length, in tokens")] = 2048
    streaming: Annotated[bool, Field(description="read while training, without a token cache")] = False
    document_mask: Annotated[
        bool,
        Field(
            description=(
                "documents in one row do not see each other: attention and positions begin anew with each"
            )
        ),
    ] = False
    shuffle: Annotated[
        Shuffle,
        Field(
            description=(
                "true (or rows): a new random order of rows each epoch; blocks: nearly sequential reads, "
                "for network file systems; false (or none): the order of the data"
            )
        ),
    ] = True
    seed: Annotated[Seed, Field(description="seed of the order of rows and of eval_split")] = 42
    num_workers: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description=(
                "threads that prepare batches, or processes that tokenize streamed text; 0: in the training "
                "thread. No effect on the order"
            ),
        ),
    ] = 2
    eval_path: Annotated[
        Paths, Field(description="held-out data, in the same format: one text or a list; null: none")
    ] = ()
    eval_split: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            allow_inf_nan=False,
            description="share of the documents held out for evaluation, chosen by a stable hash",
        ),
    ] = 0.0
    sources: Annotated[
        ManyOf[Source] | None,
        Field(description="several sources with weights, instead of path: a list of path, weight, name"),
    ] = None
    weights: Annotated[
        ManyOf[NonNegative] | None,
        Field(
            description=(
                "share of the tokens of each entry of path, relative to the others; 0: never. Each entry is "
                "then a source of its own"
            )
        ),
    ] = None
    stages: Annotated[
        ManyOf[Stage] | None,
        Field(description="other weights from a step on: a list of from_step, weights"),
    ] = None
    eos_token: Annotated[
        Text | None,
        Field(description="end-of-text token put after each document; default: what the tokenizer says"),
    ] = None


class TrainerConfig(Section):
    """How long, how fast, with what."""

    strategy: Annotated[
        Literal["auto", "ddp", "fsdp", "deepspeed"],
        Field(description="how several devices share the work; auto: by hardware"),
    ] = "auto"
    batch_size: Annotated[Count, Field(description="rows per device in one forward pass")] = 4
    gradient_accumulation: Annotated[Count, Field(description="forward passes per optimizer step")] = 1
    global_batch_size: Annotated[
        Count | None,
        Field(
            description=(
                "rows of one optimizer step on all devices together; gradient_accumulation then follows "
                "from it"
            )
        ),
    ] = None
    learning_rate: Annotated[NonNegative, Field(description="peak rate; 0 is allowed")] = 3e-4
    num_epochs: Annotated[
        Count | None,
        Field(
            description=(
                "passes over the data; when it is not given and max_steps or max_tokens is, the data "
                "repeats until then"
            )
        ),
    ] = 1
    max_steps: Annotated[
        Limit, Field(description="optimizer steps; -1: no such limit. The limit reached first ends the run")
    ] = -1
    max_tokens: Annotated[
        TokenCount | None, Field(description="tokens to train on; rounded up to whole steps")
    ] = None
    optimizer: Annotated[
        Literal["adamw", "muon"],
        Field(description="muon: Muon for the matrices inside the blocks, AdamW for the rest, at one rate"),
    ] = "adamw"
    betas: Annotated[PairOfBetas, Field(description="decay of AdamW's two moments")] = (0.9, 0.95)
    eps: Annotated[Positive, Field(description="AdamW's epsilon")] = 1e-8
    weight_decay: Annotated[NonNegative, Field(description="decoupled decay, of matrices only")] = 0.01
    max_grad_norm: Annotated[
        NonNegative, Field(description="clip the gradient to this norm; 0: no clipping")
    ] = 1.0
    scheduler: Annotated[
        Literal["cosine", "linear", "constant", "constant_with_warmup", "wsd", "inverse_sqrt"],
        Field(description="course of the rate after the warmup; wsd: constant, then falling at the end"),
    ] = "cosine"
    warmup_steps: Annotated[CountOrZero, Field(description="steps over which the rate rises to its peak")] = 0
    warmup_ratio: Annotated[Share, Field(description="the same as a share of all steps")] = 0.0
    min_lr_ratio: Annotated[
        Share, Field(description="lowest rate at the end, as a share of learning_rate")
    ] = 0.0
    decay_steps: Annotated[
        Count | None,
        Field(
            description=(
                "steps over which the rate falls: after the warmup (cosine, linear; default: all that "
                "follow), or the last ones (wsd; default: a fifth of the run)"
            )
        ),
    ] = None
    mixed_precision: Annotated[
        Literal["bf16", "fp16", "fp32"],
        Field(description="arithmetic of the model; weights and moments are always fp32"),
    ] = "bf16"
    seed: Annotated[Seed, Field(description="seed of initial weights and of dropout")] = 42
    checkpoint_every_n_steps: Annotated[
        Count | None, Field(description="save a checkpoint every so many steps; null: only the last")
    ] = 500
    save_last: Annotated[bool, Field(description="save a checkpoint after the last step")] = True
    save_best: Annotated[
        bool, Field(description="save a checkpoint at each new lowest validation loss, and keep the best")
    ] = False
    keep_last: Annotated[Count | None, Field(description="newest checkpoints to keep; null: all")] = None
    keep_every: Annotated[
        Count | None, Field(description="checkpoints of steps divisible by this are kept for good")
    ] = None
    async_checkpoint: Annotated[bool, Field(description="write checkpoints while training goes on")] = True
    on_nonfinite: Annotated[
        Literal["stop", "skip"],
        Field(description="when loss or gradient is nan or inf: stop, or skip the update and count it"),
    ] = "stop"
    num_gpus: Annotated[
        Count | None,
        Field(description="processes on this machine, one for each GPU; default: as many as GPUs"),
    ] = None
    num_nodes: Annotated[Count, Field(description="machines")] = 1
    gpus_per_node: Annotated[
        Count | None, Field(description="devices of each machine, where several are used")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _epochs_end_the_run_unless_another_limit_does(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "num_epochs" in data:
            return data
        if data.get("max_tokens") is not None or data.get("max_steps", -1) not in (-1, None):
            return {**data, "num_epochs": None}
        return data


class LoggingConfig(Section):
    """Where numbers go. ``monitors/metrics.jsonl`` is always written."""

    backends: Annotated[
        ManyOf[Literal["console", "tensorboard", "wandb"]],
        Field(description="where else than metrics.jsonl the numbers go"),
    ] = ("console",)
    project: Annotated[Text | None, Field(description="project in W&B")] = None
    run_name: Annotated[
        Text | None, Field(description="name of the run in W&B; default: name of the output folder")
    ] = None
    log_every_n_steps: Annotated[
        Count, Field(description="steps between two lines; first and last step are always logged")
    ] = 10


class EvalConfig(Section):
    """Held-out loss. Needs ``data.eval_path`` or ``data.eval_split``."""

    every_n_steps: Annotated[
        Count | None, Field(description="evaluate every so many steps and at the end; null: only at the end")
    ] = 500
    metrics: Annotated[
        ManyOf[Literal["loss", "perplexity"]],
        Field(description="what is shown; both are always in metrics.jsonl"),
    ] = ("loss", "perplexity")
    on_start: Annotated[bool, Field(description="evaluate before the first step, too")] = False
    max_batches: Annotated[
        Count | None, Field(description="use only so many batches, always the same; null: the whole set")
    ] = None
    batch_size: Annotated[
        Count | None, Field(description="rows of an evaluation batch; default: trainer.batch_size")
    ] = None
    sample_prompts: Annotated[
        ManyOf[str], Field(description="texts that the model continues at each evaluation")
    ] = ()


class OutputConfig(Section):
    """Where the run lives."""

    dir: Annotated[Text, Field(description="the run's folder; must not hold another run")] = "output/pretrain"
