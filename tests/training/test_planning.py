"""A plan says what would stop a run, in the user's own names, before anything is spent."""

from __future__ import annotations

import pytest

from protolith.config.load import load_config
from protolith.errors import InvalidValueError
from protolith.training.planning import plan_run
from protolith.training.pretrain import run
from protolith.training.request import Request
from tests.support import tiny
from tests.support.shards import documents, write_shard

JOB = """
mode = "pretrain"
max_steps = 4
output_dir = "{folder}/run"
model.name = "{folder}/model"
model.mixed_precision = "fp32"
model.compile = false
data.paths = ["{folder}/data"]
data.seq_len = 64
data.batch_size = 10
data.micro_batch_size = 4
"""


@pytest.mark.parametrize("do", [plan_run, lambda loaded: run(loaded, Request())], ids=["plan", "run"])
def test_a_batch_that_does_not_divide_is_told_in_the_names_of_the_file(tmp_path, do):
    tiny.write_model(tmp_path / "model")
    write_shard(tmp_path / "data" / "0.ds", documents(40))
    (tmp_path / "job.toml").write_text(JOB.format(folder=tmp_path))
    with pytest.raises(InvalidValueError) as caught:
        do(load_config(tmp_path / "job.toml"))
    error = caught.value
    assert error.message == "data.batch_size = 10 is no multiple of data.micro_batch_size = 4"
    assert error.where == "data.batch_size"
    assert "data.micro_batch_size" in error.hint
