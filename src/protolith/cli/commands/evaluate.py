"""``protolith eval``: loss and perplexity of a model on text or tokens it has not seen.

The data is cut into rows as for training, so the validation loss of a run comes out again when its
held-out data is given. Each token weighs the same, whatever row it is in.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from protolith.cli.model_source import ModelSource, find_model
from protolith.cli.render import Form, FormOption, facts, print_json, say
from protolith.errors import DataError, UsageError

_LONGEST_BY_DEFAULT = 2048


class DataFormat(StrEnum):
    """What the data is."""

    text = "text"
    tokens = "tokens"


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, run or checkpoint folder.")],
    data: Annotated[
        list[str], typer.Option("--data", help="File or folder of held-out data; may be repeated.")
    ],
    format: Annotated[
        DataFormat, typer.Option("--format", help="JSONL text, or .ds token shards.")
    ] = DataFormat.text,
    max_seq_length: Annotated[
        int | None,
        typer.Option("--max-seq-length", min=1, help="Row length in tokens. Default: as in training."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows at a time.")] = 8,
    form: FormOption = Form.text,
) -> None:
    """Held-out loss and perplexity of a model."""
    source = find_model(model)

    import torch
    from pydantic import ValidationError

    from protolith.config.mixture import ONLY_SOURCE
    from protolith.config.schema import TrainConfig
    from protolith.data.loader import EvalLoader
    from protolith.data.tokenizer import load_tokenizer
    from protolith.distributed.world import single_process
    from protolith.model.export import load_exported
    from protolith.model.loss import LossModel
    from protolith.training.datasets import open_datasets
    from protolith.training.validate import perplexity

    trained_with = source.run_config().get("data") or {}
    tokenizer = load_tokenizer(source.folder, trained_with.get("eos_token"))
    device = single_process().device
    module = load_exported(source.folder).to(device)
    seq_len = max_seq_length or trained_with.get("max_seq_length") or _row_length(module.config)
    try:
        config = TrainConfig.model_validate(
            {
                "model": {"name": str(source.folder)},
                "data": {
                    "path": data,
                    "format": format.value,
                    "text_field": trained_with.get("text_field", "text"),
                    "packing": trained_with.get("packing", True),
                    "document_mask": trained_with.get("document_mask", False),
                    "max_seq_length": seq_len,
                },
            }
        )
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"], where="--data") from error
    try:
        datasets = open_datasets(
            config,
            tokenizer,
            vocab_size=module.config.vocab_size,
            working=lambda *_: None,
            should_stop=lambda: False,
        )
    except DataError as error:
        error.message = error.message.removeprefix("training data: ")
        raise
    for warning in datasets.warnings:
        say(f"warning: {warning}", error=True)
    loss_model = LossModel(module).eval()
    loss_sum, num_tokens = 0.0, 0
    with torch.no_grad():
        for batch in EvalLoader(datasets.rows, batch_rows=batch_size, max_batches=None):
            given = (batch.inputs, batch.targets, batch.positions)
            loss_sum += float(loss_model(*(part.to(device) for part in given if part is not None)))
            num_tokens += batch.num_targets
    loss = loss_sum / num_tokens if num_tokens else math.nan
    answer: dict[str, Any] = {
        "loss": loss,
        "perplexity": perplexity(loss),
        "num_tokens": num_tokens,
        "num_rows": datasets.num_rows,
        "max_seq_length": seq_len,
    }
    _show(answer, source, data, datasets.notes, datasets.skipped.get(ONLY_SOURCE, {}), form)


def _show(
    answer: dict[str, Any],
    source: ModelSource,
    data: list[str],
    notes: list[str],
    skipped: dict[str, int],
    form: Form,
) -> None:
    if form is Form.json:
        print_json({**answer, "model": str(source.folder), "data": data, "skipped": skipped, "notes": notes})
        return
    for note in notes:
        say(f"note: {note}", error=True)
    facts({**answer, "model": str(source.folder)})


def _row_length(hf_config: Any) -> int:
    """What the model can see, within reason, when nobody says how it was trained."""
    return min(
        getattr(hf_config, "max_position_embeddings", None) or _LONGEST_BY_DEFAULT, _LONGEST_BY_DEFAULT
    )
