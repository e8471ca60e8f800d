"""Reference pages against the code they describe."""

from __future__ import annotations

import inspect
import io
import re
from importlib import import_module

import pytest

from protolith import errors
from protolith.cli.reference import PAGE, reference_page, write_reference
from protolith.formats.rundir import OWN_NAMES
from tests.docs.pages import ROOT, anchors, blocks, prose
from tests.support import tiny

REFERENCE = ROOT / "docs/reference"


def table(page: str) -> list[list[str]]:
    """Cells of every table row of a reference page, heads and rules left out."""
    rows = re.findall(r"^\|(.*)\|$", prose(REFERENCE / page), re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows if "`" in row]


def kinds(kind: type[errors.ProtolithError] = errors.ProtolithError) -> list[type[errors.ProtolithError]]:
    below = [more for child in kind.__subclasses__() for more in kinds(child)]
    return [found for found in (kind, *below) if found.__module__ == errors.__name__]


def test_the_command_line_page_is_what_the_commands_say(tmp_path):
    assert (REFERENCE / PAGE).read_text(encoding="utf-8") == reference_page(), "run: make docs"
    write_reference(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PAGE]


def test_the_errors_page_lists_the_tree():
    rows = [row for row in table("errors.md") if len(row) == 4]
    listed = {row[0].strip("`"): (row[1].strip("`"), int(row[2])) for row in rows}
    assert listed == {kind.code: (kind.__name__, kind.exit_code) for kind in kinds()}


def test_extra_fields_of_errors_are_those_they_send():
    extra = {row[0].strip("`"): row[3] for row in table("errors.md") if len(row) == 4}
    for kind in kinds():
        parameters = set(inspect.signature(kind.__init__).parameters)
        found = parameters & {"problems", "differences"}
        assert set(re.findall(r"`(\w+)`", extra[kind.code])) == found, kind


def test_there_is_advice_for_every_error():
    sections = anchors(ROOT / "docs/guides/troubleshooting.md")
    assert {kind.code for kind in kinds()} | {"internal"} <= sections


def test_the_exit_codes_page_lists_them_all():
    listed = {row[2].strip("`"): int(row[0]) for row in table("exit-codes.md")}
    assert listed == {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    """A run that does everything the pages speak of."""
    folder = tmp_path_factory.mktemp("run")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_model(folder / "model")
    import protolith
    from protolith.training.pretrain import run
    from protolith.training.request import Request

    recipe = tiny.write_recipe(
        folder,
        trainer__max_steps=3,
        data__eval_split=0.1,
        eval__sample_prompts=["kaa"],
        eval__every_n_steps=2,
    )
    run(protolith.TrainConfig.from_file(recipe), Request(stream=io.StringIO()))
    return folder / "run"


def test_the_metrics_page_names_what_a_run_logs(a_run):
    from protolith.formats.rundir import metrics_lines

    logged = {name for line in metrics_lines(a_run / "monitors/metrics.jsonl") for name in line}
    listed = {row[0].strip("`") for row in table("metrics.md")}
    assert logged - {"step", "time"} <= listed
    assert listed - logged == {"progress/skipped_steps", "perf/mfu", "val/<source>/loss"}


def test_the_files_page_names_what_a_run_writes(a_run):
    listed = set(re.findall(r"`([^`]+)`", prose(REFERENCE / "files.md")))

    def is_listed(name: str) -> bool:
        name = re.sub(r"attempt_\d+", "attempt_<n>", name)
        name = re.sub(r"rank_\d+", "rank_<r>", re.sub(r"step_\d+", "step_<N>", name))
        short = name.rpartition("/")[2]
        return bool({name, f"{name}/", short} & listed)

    written = [path.relative_to(a_run).as_posix() for path in a_run.rglob("*")]
    folders = ("logs", "monitors", "checkpoints")
    unlisted = [name for name in written if not is_listed(name) and name not in folders]
    assert [name for name in unlisted if not name.endswith("attempt_1")] == []
    assert {name for name in OWN_NAMES if not any(item.startswith(name) for item in listed)} == set()


SIGNATURES = [block for block in blocks(REFERENCE / "python.md") if "signature" in block.options]


@pytest.mark.parametrize("block", SIGNATURES, ids=lambda block: block.options["signature"])
def test_signatures_on_the_python_page_are_those_of_the_code(block):
    module, *names = block.options["signature"].split(".")
    function = import_module(module)
    for name in names:
        function = getattr(function, name)
    signature = str(inspect.signature(function)).replace("'", "")
    written = re.sub(r"\s+", " ", block.body.replace('"', "")).strip()
    written = written.replace("( ", "(").replace(", )", ")")
    assert written == f"{names[-1]}{signature}"


def test_what_the_package_exports_is_on_the_python_page():
    import protolith

    page = (REFERENCE / "python.md").read_text(encoding="utf-8").replace("\\", "")
    for name in protolith.__all__:
        assert f"## protolith.{name}" in page
    state = protolith.TrainState
    names = {*state.__dataclass_fields__, *(n for n, v in vars(state).items() if isinstance(v, property))}
    assert {name for name in names if f"`{name}`" not in page} == set()
