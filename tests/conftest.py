"""Shared by all tests: no network, one thread of arithmetic, and no silent skips where that is asked."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import signal

import pytest

from tests.support.s3 import S3Server, forget_clients, set_environment

# A suite started in the background inherits an ignored SIGINT, and so would every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    """Caches and client config of a test never touch those of the person running it."""
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path_factory.mktemp("home")))


def pytest_sessionfinish(session, exitstatus):
    """With PROTOLITH_TESTS_NO_SKIP a skipped test fails the run, so that a missing service is noticed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("PROTOLITH_TESTS_NO_SKIP") and reporter and exitstatus == 0:
        skipped = len(reporter.stats.get("skipped", []))
        if skipped:
            reporter.write_line(f"{skipped} skipped test(s), and PROTOLITH_TESTS_NO_SKIP is set: failing")
            session.exitstatus = 1


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A real S3 server, started when the first test of this process asks for it."""
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The server, with this process as its client."""
    set_environment(monkeypatch, s3_server.environment())
    forget_clients()
    yield s3_server
    forget_clients()
