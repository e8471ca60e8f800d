"""Losses of 60 steps, compared for equality with files under version control.

A change of these numbers is a change of what the product computes: it needs its reason in the commit.
Write them anew with ``PROTOLITH_WRITE_GOLDEN=1 pytest tests/golden``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import tiny

HERE = Path(__file__).parent

#: Kernels are chosen by the processor; with these, processors of other makes and ages give the same bits.
SAME_ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("packing", [True, False])
def test_losses_are_those_on_file(tmp_path, family, packing):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 80)
    tiny.write_model(tmp_path / "model", family)
    recipe = tiny.write_recipe(
        tmp_path,
        trainer__max_steps=60,
        trainer__gradient_accumulation=2,
        trainer__warmup_steps=5,
        data__eval_split=0.1,
        data__packing=packing,
        eval__every_n_steps=20,
    )
    done = tiny.cli("pretrain", recipe, "-o", "json", env=SAME_ARITHMETIC)
    assert done.returncode == 0, done.stderr
    found = {str(step): value for step, value in tiny.losses(tmp_path / "run").items()}
    found["val"] = json.loads(done.stdout)["metrics"]["val/loss"]
    path = HERE / f"{family}_{'windows' if packing else 'documents'}.json"
    if os.environ.get("PROTOLITH_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=0) + "\n")
    assert found == json.loads(path.read_text())
