"""The command line itself: what it loads, what it says, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from protolith.cli import main as cli
from protolith.errors import ConfigError, NoSpaceError, ResumeMismatchError, ShardError
from protolith.version import __version__

HEAVY = {
    *("torch", "numpy", "transformers", "tokenizers", "datatrove", "wandb", "tensorboard"),
    *("pydantic", "pydantic_core", "yaml", "rich", "httpx", "requests"),
    *("fastapi", "starlette", "flask", "aiohttp"),
}


def run_python(code: str, *words: str, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **settings,
    )


@pytest.fixture
def command(monkeypatch):
    """Put a function in the place of a command."""

    def put(function) -> None:
        module = types.ModuleType("protolith.cli.commands.fake")
        module.fake = function
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "fake", cli.Entry("fake", "fake", "A fake."))

    return put


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_and_version_load_nothing_heavy(words):
    code = (
        "import sys; from protolith.cli.main import main; code = main(sys.argv[1:]);"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = run_python(code, *words)
    loaded = set(done.stdout.split("LOADED")[1].split())
    assert loaded.isdisjoint(HEAVY), done.stdout + done.stderr
    assert "protolith.cli.commands" not in done.stdout


def test_help_of_a_command_loads_only_that_command():
    code = (
        "import sys; from protolith.cli.main import main; main(sys.argv[1:]);"
        "print('LOADED', *sorted(name for name in sys.modules))"
    )
    for words in (["runs", "--help"], ["doctor", "--help"], ["eval", "--help"]):
        loaded = set(run_python(code, *words).stdout.split("LOADED")[1].split())
        assert loaded.isdisjoint(HEAVY - {"pydantic", "pydantic_core"})  # typer reads words with it
        commands = {name for name in loaded if name.startswith("protolith.cli.commands.")}
        assert len(commands) == 1


def test_python_m_protolith_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "protolith", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"protolith {__version__}\n"


def test_help_lists_every_command_of_the_table_and_nothing_else(protolith):
    answer = protolith("--help")
    assert answer.code == 0
    listed = answer.out.split("Commands:")[1]
    for name, entry in cli.COMMANDS.items():
        assert f"\n  {name}  " in listed or f"\n  {name} " in listed
        assert entry.help.split()[0] in listed
    assert protolith().out == answer.out
    for later in ("serve", "login", "volumes"):
        assert later not in answer.out


@pytest.mark.parametrize("name", ["", "tokenizer", "config", "data", *cli.COMMANDS])
def test_every_command_has_help(protolith, name):
    answer = protolith(*name.split(), "--help")
    assert answer.code == 0, answer.err
    assert "Usage: protolith" in answer.out
    assert protolith(*name.split(), "-h") == answer


@pytest.mark.parametrize("group", [name for name in cli._GROUPS if name not in cli.COMMANDS])
def test_a_group_alone_shows_its_commands_as_the_program_does(protolith, group):
    answer = protolith(group)
    assert answer.code == 0 and answer.err == ""
    assert answer == protolith(group, "--help")
    assert "Commands:" in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrian"], "Did you mean 'pretrain'"),
        (["tokenizer", "trian"], "Did you mean 'train'"),
        (["doctor", "--ouput", "json"], "--output"),
        (["generate"], "Missing argument 'MODEL'"),
        (["generate", "m", "--seed", "x"], "--seed"),
        (["eval", "m", "--data", "d", "--format", "txt"], "'text', 'tokens'"),
        (["--versoin"], "--version"),
    ],
)
def test_usage_errors_exit_2_with_the_nearest_name_and_no_traceback(protolith, words, said):
    answer = protolith(*words)
    assert answer.code == 2
    assert answer.out == ""
    assert said in answer.err
    lines = answer.err.splitlines()
    assert [line.split()[0] for line in lines] == ["error:", "where:", "hint:"]
    assert "Traceback" not in answer.err and "Value error" not in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["doctr", "-o", "json"],
        ["doctor", "-o", "json", "--nope"],
        ["doctor", "-ojson", "--nope"],
        ["doctor", "--nope", "--output=json"],
        ["runs", "/no/such", "--output", "json"],
        ["export", "/no/such", "--output", "x", "-o", "json"],
    ],
)
def test_with_o_json_an_error_is_one_json_document_alone_on_stdout(protolith, words):
    answer = protolith(*words)
    assert answer.code in (2, 3)
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) >= {"code", "message", "hint", "where"}
    assert answer.err == ""


def test_output_of_export_is_a_folder_even_when_it_is_called_json(protolith):
    answer = protolith("export", "/no/such", "--output", "json")
    assert answer.code == 3
    assert answer.err.startswith("error: no model /no/such")


def test_typed_errors_are_three_lines_and_their_own_exit_code(protolith, command):
    def full() -> None:
        raise NoSpaceError("no space\nleft\x1b[31m", hint="free some", where="/data")

    command(full)
    answer = protolith("fake")
    assert answer.code == 7
    assert answer.err == "error: no space left\\x1b[31m\nwhere: /data\nhint:  free some\n"
    assert answer.out == ""


def test_further_faults_found_at_the_same_time_are_listed(protolith, command):
    first = ConfigError("unknown key lr", where="a.yaml:3")
    errors = {
        "config": ConfigError(
            first.message,
            where=first.where,
            problems=(first, ConfigError("bad seed", where="a.yaml:9", hint="a whole number")),
        ),
        "shards": ShardError("2 bad shards", problems=("a.ds: odd size", "b.ds: no index")),
        "resume": ResumeMismatchError("it differs", differences=("data: 3 shards, were 4",)),
    }

    def fail(kind: str) -> None:
        raise errors[kind]

    command(fail)
    said = {kind: protolith("fake", kind) for kind in errors}
    assert said["config"].err.splitlines()[-1].strip() == "- a.yaml:9: bad seed (a whole number)"
    assert "- a.ds: odd size" in said["shards"].err and "- b.ds: no index" in said["shards"].err
    assert "- data: 3 shards, were 4" in said["resume"].err
    assert [said[kind].code for kind in errors] == [2, 2, 5]
    shown = protolith("fake", "resume", "-o", "json")  # fake takes no -o: a usage error, in JSON
    assert shown.json["error"]["code"] == "usage"


def test_an_unexpected_error_names_a_private_file_with_the_traceback(protolith, command, monkeypatch):
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    command(broken)
    monkeypatch.delenv("PROTOLITH_DEBUG", raising=False)
    answer = protolith("fake")
    assert answer.code == 1
    assert "Traceback" not in answer.err
    path = answer.err.split("traceback in ")[1].splitlines()[0]
    with open(path, encoding="utf-8") as kept:
        assert "ZeroDivisionError: by zero" in kept.read()
    assert Path(path).stat().st_mode & 0o077 == 0
    monkeypatch.setenv("PROTOLITH_DEBUG", "1")
    assert "Traceback" in protolith("fake").err


def test_ctrl_c_exits_130(protolith, command):
    def interrupted() -> None:
        raise KeyboardInterrupt

    command(interrupted)
    answer = protolith("fake")
    assert (answer.code, answer.out, answer.err) == (130, "", "interrupted\n")


FAKE = (
    "import sys, time, types; from protolith.cli import main as cli;"
    "module = types.ModuleType('protolith.cli.commands.fake');"
    "module.fake = lambda: {body};"
    "sys.modules[module.__name__] = module; cli.COMMANDS['fake'] = cli.Entry('fake', 'fake', '');"
    "sys.exit(cli.main(['fake']))"
)


def test_a_real_ctrl_c_ends_a_command_with_130_and_no_traceback():
    code = FAKE.format(body="(print('ready', flush=True), time.sleep(30)) and None")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"interrupted\n")


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_leaves_is_no_fault(lines):
    code = FAKE.format(body=f"[print('line') for _ in range({lines})] and None")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 0


def test_commands_end_with_the_code_they_return_or_exit_with(protolith, command):
    import typer

    def ends(how: str) -> int | None:
        if how == "exit":
            raise typer.Exit(8)
        return 5 if how == "return" else None

    command(ends)
    assert [protolith("fake", how).code for how in ("exit", "return", "plain")] == [8, 5, 0]


def test_letters_the_terminal_cannot_show_are_escaped(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "protolith", "runs", str(tmp_path / "naïve-漢")],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 3
    assert b"na\\xefve-\\u6f22" in done.stderr


def test_config_schema_prints_both_spellings(protolith):
    recipe, job = protolith("config", "schema"), protolith("config", "schema", "job", "-o", "json")
    assert recipe.code == job.code == 0
    assert "trainer" in recipe.json["properties"]
    assert "optim" in job.json["properties"]
    assert json.loads(recipe.out) != json.loads(job.out)
