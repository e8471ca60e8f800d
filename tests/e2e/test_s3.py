"""Training on token shards in a real object store: as on a local copy, through outages, with typed errors."""

from __future__ import annotations

import os
import threading
import time

import pytest

from protolith.data import block_cache, storage_faults
from protolith.data.block_cache import BlockCache
from protolith.errors import NotAllowedError, NotFoundError, UnreachableError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir
from protolith.training.request import Request
from tests.support import tiny
from tests.support.s3 import S3Server, forget_clients, set_environment
from tests.support.shards import documents, write_shard

STEPS = 30
OUTAGE_S = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, shards, and the losses of a run on the local copy of them."""
    folder = tmp_path_factory.mktemp("s3-runs")
    tiny.write_model(folder / "model")
    for number in range(3):
        write_shard(folder / "data" / f"{number:05d}.ds", documents(60, first=100 * number))
    write_shard(folder / "held" / "00000.ds", documents(20, first=900))
    train(folder, folder / "data", "local", eval_path=folder / "held")
    return folder


@pytest.fixture
def every_row_asks(monkeypatch, tmp_path):
    """Nothing is kept of what was fetched, so that the run needs the server at every step."""
    cache = BlockCache(tmp_path / "blocks", limit_bytes=0, block_bytes=512)
    monkeypatch.setattr(block_cache, "_shared", {os.getpid(): cache})
    yield cache
    cache.close()


def train(folder, data, name, *, eval_path=None, request=None, **changes):
    settings = {
        "data__path": str(data) if data else None,
        "data__format": "tokens",
        "data__eval_path": str(eval_path) if eval_path else None,
        "eval__every_n_steps": 10,
        "trainer__max_steps": STEPS,
        "output__dir": str(folder / name),
        **changes,
    }
    return tiny.train(folder, request=request, **settings)


def at_step(folder, name, step, action):
    """Do ``action`` in a thread when the run has come to ``step``."""

    def wait_and_act():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            metrics = RunDir(folder / name).metrics
            if metrics.exists() and max(tiny.losses(folder / name), default=0) >= step:
                action()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def test_losses_are_those_of_a_local_copy(place, s3):
    state = train(place, s3.upload(place / "data"), "remote", eval_path=s3.upload(place / "held"))
    assert state.global_step == STEPS
    assert tiny.losses(place / "remote") == tiny.losses(place / "local")
    assert state.metrics["val/loss"] > 0


def test_workers_that_read_ahead_change_nothing(place, s3, every_row_asks):
    url = s3.upload(place / "data")
    train(place, url, "ahead", eval_path=s3.upload(place / "held"), data__num_workers=3)
    assert tiny.losses(place / "ahead") == tiny.losses(place / "local")
    assert every_row_asks.num_fetched > STEPS


def test_mixtures_masks_and_block_order_are_those_of_local_copies(place, s3, every_row_asks):
    """Sources of which one lies here and one behind a URL."""
    first = write_shard(place / "one" / "00000.ds", documents(40)).parent
    url = s3.upload(place / "data")
    settings = {
        "data__packing": "best_fit",
        "data__document_mask": True,
        "data__shuffle": "blocks",
        "trainer__max_steps": 10,
    }
    for name, second in (("mixed", place / "data"), ("mixed-remote", url)):
        sources = [
            {"name": "one", "path": str(first), "weight": 1.0},
            {"name": "two", "path": str(second), "weight": 2.0},
        ]
        train(place, None, name, data__sources=sources, **settings)
    assert tiny.losses(place / "mixed-remote") == tiny.losses(place / "mixed")


def test_a_server_that_stands_still_is_waited_for(place, s3, every_row_asks):
    def outage():
        with s3.frozen():
            time.sleep(OUTAGE_S)

    url, held = s3.upload(place / "data"), s3.upload(place / "held")
    began = time.monotonic()
    thread = at_step(place, "outage", 5, outage)
    state = train(place, url, "outage", eval_path=held)
    took = time.monotonic() - began
    thread.join()
    assert took > OUTAGE_S, "the run did not need the server"
    assert state.global_step == STEPS
    assert tiny.losses(place / "outage") == tiny.losses(place / "local")


def test_a_server_that_dies_ends_the_run_saved_and_it_goes_on_elsewhere(
    place, tmp_path, monkeypatch, every_row_asks
):
    server = S3Server.start(tmp_path / "server")
    try:
        set_environment(monkeypatch, server.environment())
        forget_clients()
        monkeypatch.setattr(storage_faults, "RETRY_S", 2.0)
        url, held = server.upload(place / "data"), server.upload(place / "held")
        thread = at_step(place, "died", 7, server.stop)
        with pytest.raises(UnreachableError) as caught:
            train(place, url, "died", eval_path=held, trainer__checkpoint_every_n_steps=100)
        thread.join()
    finally:
        server.stop()
        forget_clients()
    assert caught.value.exit_code == 6 and url in caught.value.where
    run_dir = RunDir(place / "died")
    saved = [
        found.step for found in checkpoint_files.list_checkpoints(run_dir.checkpoints) if not found.problem
    ]
    assert saved == [max(tiny.losses(run_dir.root))] and 7 <= saved[0] < STEPS
    train(place, place / "data", "died", eval_path=place / "held", request=Request(resume="latest"))
    assert tiny.losses(run_dir.root) == tiny.losses(place / "local")


def test_faults_of_a_start_are_typed(place, s3, monkeypatch):
    url = s3.upload(place / "data")
    for wrong in (f"{url}-misspelt", "s3://no-such-bucket-here/data"):
        with pytest.raises(NotFoundError) as missing:
            train(place, wrong, "missing")
        assert missing.value.where == wrong and missing.value.exit_code == 3
    set_environment(monkeypatch, s3.environment(secret="not-the-secret"))
    forget_clients()
    with pytest.raises(NotAllowedError) as refused:
        train(place, url, "refused")
    assert refused.value.exit_code == 4 and url in refused.value.where


def test_the_command_says_no_secrets(place, s3):
    url = s3.upload(place / "data")
    config = tiny.write_recipe(place, data__path=url, data__format="tokens", output__dir=str(place / "wrong"))
    environment = {**s3.environment(secret="not-the-secret"), "AWS_CONFIG_FILE": os.devnull}
    done = tiny.cli("pretrain", config, env=environment)
    assert done.returncode == 4, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "error: the storage refuses" in said and url in said
    assert "not-the-secret" not in said and "Traceback" not in said
