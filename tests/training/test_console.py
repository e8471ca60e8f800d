"""Lines of a run: who sees which."""

from __future__ import annotations

import io

from protolith.training.monitors.console import Console

NUMBERS = {
    "loss/mean": 1.0,
    "perf/throughput": 2.0,
    "time/step": 0.1,
    "optim/lr": 0.1,
    "optim/grad_norm": 1.0,
}


def speak(console: Console) -> None:
    console.info("a note")
    console.step(1, 2, NUMBERS)
    console.warn("careful")
    console.warn("careful")
    console.ended("done: 2 steps")


def test_without_the_console_backend_warnings_and_the_end_are_said(tmp_path):
    out = io.StringIO()
    with Console(out, quiet=True) as console:
        console.log_to(tmp_path / "logs" / "attempt_1" / "rank_0.log")
        speak(console)
    assert out.getvalue() == "warning: careful\ndone: 2 steps\n"
    log = (tmp_path / "logs" / "attempt_1" / "rank_0.log").read_text()
    assert log.splitlines()[0].endswith(" INFO a note")
    assert len(log.splitlines()) == 4


def test_with_it_everything_is_said_once():
    out = io.StringIO()
    with Console(out) as console:
        speak(console)
    assert len(out.getvalue().splitlines()) == 4


def test_a_reader_that_left_is_not_written_to_again():
    class Gone(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise BrokenPipeError

    out = Gone()
    with Console(out, quiet=True) as console:
        speak(console)
        console.warn("more")
    assert out.tries == 1
