"""What a run's numbers depend on, by area: saved with each checkpoint, compared on resume."""

from __future__ import annotations

import json
from typing import Any

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.formats.rundir import jsonable

#: Keys of a Hugging Face config that say nothing about the numbers.
_NOT_THE_MODEL = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


def run_identity(
    config: TrainConfig,
    plan: Plan,
    *,
    data: dict[str, Any],
    tokenizer_digest: str,
    hf_config: dict[str, Any],
) -> dict[str, Any]:
    """JSON types only, so that what was saved and what is now compare as equals."""
    trainer = config.trainer
    identity = {
        "data": data,
        "tokenizer": {"digest": tokenizer_digest},
        "model": {key: value for key, value in hf_config.items() if key not in _NOT_THE_MODEL},
        "batch": {"global_rows": plan.batch.global_rows},
        "schedule": {
            "learning_rate": trainer.learning_rate,
            "scheduler": trainer.scheduler,
            "total_steps": plan.total_steps,
            "warmup_steps": plan.warmup_steps,
            "decay_steps": plan.decay_steps,
            "min_lr_ratio": trainer.min_lr_ratio,
        },
        "optimizer": {
            "optimizer": trainer.optimizer,
            "betas": list(trainer.betas),
            "eps": trainer.eps,
            "weight_decay": trainer.weight_decay,
            "max_grad_norm": trainer.max_grad_norm,
            "mixed_precision": trainer.mixed_precision,
            "seed": trainer.seed,
        },
    }
    return json.loads(json.dumps(jsonable(identity)))  # type: ignore[no-any-return]
