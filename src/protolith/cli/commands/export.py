"""``protolith export``: a checkpoint as a Hugging Face model folder, without the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protolith.cli.model_source import find_checkpoint
from protolith.cli.render import Form, ShortFormOption, facts, print_json
from protolith.errors import ConflictError


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CHECKPOINT", help="checkpoints/step_<N> of a run, or the run: its newest."),
    ],
    output: Annotated[Path, typer.Option("--output", help="Folder to write the model to.")],
    form: ShortFormOption = Form.text,
) -> None:
    """Turn a checkpoint into a folder that transformers loads."""
    source = find_checkpoint(checkpoint)
    target = output.expanduser()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConflictError("the output folder is not empty", where=str(output), hint="choose another folder")

    from protolith.data.tokenizer import load_tokenizer
    from protolith.model.config import make_config, read_config_dict
    from protolith.model.export import export_model
    from protolith.tensors.stored import weights_of

    tokenizer = load_tokenizer(source.folder, (source.run_config().get("data") or {}).get("eos_token"))
    weights = weights_of(source.folder)
    config, _ = make_config(read_config_dict(source.folder), {}, where=str(source.folder))
    export_model(weights, config, tokenizer, target)
    answer = {
        "output": str(output),
        "checkpoint": str(source.folder),
        "step": source.step,
        "num_parameters": sum(weights.shape(name).numel() for name in weights),
    }
    if form is Form.json:
        print_json(answer)
    else:
        facts(answer)
