"""A compiled run and a plain one: same names, same course, either resumes the other (T37, T31)."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors import safe_open

from protolith.training import compiling
from protolith.training.request import Request
from tests.support import tiny

SETTINGS = {
    "trainer__max_steps": 6,
    "trainer__checkpoint_every_n_steps": 3,
    "data__max_seq_length": 16,
    "eval__every_n_steps": None,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run compiled and plain, each stopped at step 3 and continued the other way."""
    if not compiling.shutil.which("g++"):
        pytest.skip("compiling on a CPU needs g++")
    place = tmp_path_factory.mktemp("compile")
    tiny.write_corpus(place / "corpus.jsonl", 30)
    tiny.write_model(place / "model", num_hidden_layers=1)
    for name, setting in (("compiled", True), ("plain", False)):
        tiny.train(place, output__dir=str(place / name), model__compile=setting, **SETTINGS)
    for name, setting in (("compiled", False), ("plain", True)):
        shutil.copytree(place / name, place / f"{name}_then_other", symlinks=True)
        tiny.train(
            place,
            request=Request(resume="3"),
            output__dir=str(place / f"{name}_then_other"),
            model__compile=setting,
            **SETTINGS,
        )
    return place


def test_losses_agree_and_continue(runs):
    plain = tiny.losses(runs / "plain")
    for name in ("compiled", "compiled_then_other", "plain_then_other"):
        assert tiny.losses(runs / name) == pytest.approx(plain, rel=1e-5)


def test_names_in_checkpoints_know_of_no_wrapper(runs):
    names = []
    for name in ("compiled", "plain"):
        with safe_open(runs / name / "checkpoints" / "step_6" / "model.safetensors", "pt") as file:
            names.append(sorted(file.keys()))
    assert names[0] == names[1]
    assert not any("_orig_mod" in n or n.startswith(("module.", "hf.")) for n in names[0])


@pytest.mark.parametrize(
    ("setting", "flops", "expected"),
    [("auto", 1e10, False), ("auto", 1e16, True), (True, 1.0, True), (False, 1e20, False)],
)
def test_auto_is_decided_by_the_plan_and_says_why(setting, flops, expected):
    wanted, why = compiling.decide(setting, planned_flops=flops, device=torch.device("cpu"))
    assert wanted is expected
    assert why.startswith(f"compile: {'on' if expected else 'off'}")


def test_without_a_compiler_it_stays_off_and_says_so(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    wanted, why = compiling.decide(True, planned_flops=1e20, device=torch.device("cpu"))
    assert not wanted
    assert "no C++ compiler" in why
