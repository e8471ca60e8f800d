"""``protolith tokenize`` as a person uses it: killed, stopped, resumed, under a scheduler, and trained on."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from protolith.data.tokenize_report import JOB_DIR, JobDir, TaskReport
from tests.support import tiny

WAIT_S = 60


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A corpus of four tasks, a tokenizer, and what an undisturbed run makes of them."""
    folder = tmp_path_factory.mktemp("tokenize")
    tiny.write_tokenizer(folder / "tok")
    draw = random.Random(0)
    with open(folder / "corpus.jsonl", "w") as out:
        for _ in range(2_000):
            out.write(json.dumps({"text": " ".join(draw.choices(tiny.WORDS, k=1_000))}) + "\n")
    done = command(folder, "whole", "--workers", 1, "-o", "json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def arguments(folder, output, *more):
    return (
        "tokenize",
        folder / "corpus.jsonl",
        "--tokenizer",
        folder / "tok",
        "--output",
        folder / output,
        "--shard-tokens",
        "300k",
        *more,
    )


def command(folder, output, *more, **options):
    return tiny.cli(*arguments(folder, output, *more), **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def workers_of(job: JobDir) -> set[int]:
    reports = [TaskReport.read(job.progress(task)) for task in job.told("progress")]
    return {report.pid for report in reports if report is not None}


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"in vain waited for {what}")


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def begin_and_wait_for_work(folder, output):
    """A run with a finished task and two workers at work."""
    process = tiny.start(*arguments(folder, output, "--workers", 2))
    job = JobDir(folder / output / JOB_DIR)

    def at_work():
        assert process.poll() is None, process.stdout.read()
        results = job.root / "results"
        return results.is_dir() and any(job.told("results")) and bool(workers_of(job))

    wait_until(at_work, "a finished task")
    return process, job


def group_of(pid):
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and lives(path.name) and process_group(path.name) == pid
    ]


def process_group(pid):
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return None


def test_the_answer_counts_what_was_made(given):
    _folder, answer = given
    assert (answer["documents"], answer["records"], answer["tokens"]) == (2000, 2000, 2000 * 1001)
    assert (answer["shards"], answer["token_bytes"], answer["eos_id"]) == (7, 2, 0)
    assert answer["tasks"] == 4
    assert not answer["already_done"]


def test_more_workers_make_the_same_and_nothing_floods_the_terminal(given):
    folder, _answer = given
    done = command(folder, "two", "--workers", 2, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shards"] == 7
    assert all(re.fullmatch(r"tokenizing \d+%  .* tokens/s.*", line) for line in done.stderr.splitlines())
    assert contents(folder / "two") == contents(folder / "whole")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 8)]
)
def test_an_end_in_the_middle_leaves_no_process_and_no_shard_and_is_gone_on_from(given, number, code):
    folder, _answer = given
    output = f"ended_by_{int(number)}"
    process, job = begin_and_wait_for_work(folder, output)
    (worker, *_) = workers_of(job) or {0}
    group = process_group(worker) if worker else None
    process.send_signal(number)
    said = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == code, said
    if group is not None:
        wait_until(lambda: not group_of(group), "workers to end")
    assert [path.name for path in (folder / output).iterdir()] == [JOB_DIR]
    if number != signal.SIGKILL:
        assert "the same command goes on where it was" in said
    again = command(folder, output, "--workers", 2, "-o", "json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["resumed_tasks"] >= 1
    assert "going on: " in again.stderr
    assert contents(folder / output) == contents(folder / "whole")


def test_a_killed_worker_is_told(given):
    folder, _answer = given
    process, job = begin_and_wait_for_work(folder, "killed_worker")
    wait_until(lambda: workers_of(job), "a worker")
    os.kill(next(iter(workers_of(job))), signal.SIGKILL)
    said = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == 1, said
    assert "was killed" in said
    assert "--workers" in said
    assert command(folder, "killed_worker").returncode == 0
    assert contents(folder / "killed_worker") == contents(folder / "whole")


def test_done_and_other_jobs(given):
    folder, _answer = given
    again = command(folder, "whole")
    assert again.returncode == 0
    assert again.stdout.startswith("already done")
    other = command(folder, "whole", "--text-field", "body", "-o", "json")
    assert other.returncode == 5
    error = json.loads(other.stdout)["error"]
    assert error["code"] == "resume_mismatch"
    assert error["differences"] == ["text_field: text -> body"]


def test_wrong_calls_end_with_2(given):
    folder, _answer = given
    for more, said in (
        (("--shard-tokens", "many"), "not a count"),
        (("--eos-token", "<|endoftxt|>"), "<|endoftext|>"),
        (("--executor", "slurm"), "--partition"),
        (("--partition", "cpu"), "belong to --executor slurm"),
        (("--executor", "slurm", "--partition", "cpu", "--sbatch", "account"), "NAME=VALUE"),
    ):
        done = command(folder, "wrong", *more)
        assert done.returncode == 2, (more, done.stderr)
        assert said in done.stderr
        assert not (folder / "wrong").exists()


FAKE_SBATCH = """#!{python}
import os, subprocess, sys, time
script = open(sys.argv[-1]).read()
open({log!r}, "a").write(script)
first, last = next(l for l in script.splitlines() if "--array" in l).split("=")[1].split("%")[0].split("-")
open({log!r} + ".args", "a").write(" ".join(sys.argv[1:-1]) + chr(10))
copy = {log!r} + ".sh"
open(copy, "w").write(script)
for n in range(int(first), int(last) + 1):
    subprocess.Popen(["bash", copy], start_new_session=True, stdout=open({log!r} + f".{{n}}", "w"),
        stderr=subprocess.STDOUT,
        env={{**os.environ, "SLURM_ARRAY_TASK_ID": str(n), "SLURM_NODELIST": "here"}})
print("Submitted batch job 4711")
"""
FAKE_SRUN = '#!/bin/bash\nwhile [[ "$1" == -* ]]; do [[ "$1" == -n ]] && shift; shift; done\nexec "$@"\n'
FAKE_SCONTROL = "#!/bin/bash\necho here\n"


def test_under_slurm_the_jobs_make_the_same(given, tmp_path):
    folder, _answer = given
    bin_dir, log = tmp_path / "bin", tmp_path / "submitted"
    bin_dir.mkdir()
    for name, text in (
        ("sbatch", FAKE_SBATCH.format(python=sys.executable, log=str(log))),
        ("srun", FAKE_SRUN),
        ("scontrol", FAKE_SCONTROL),
        ("squeue", "#!/bin/bash\necho 4711\n"),
    ):
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    done = command(
        folder,
        "slurm",
        *("--executor", "slurm", "--partition", "cpu", "--time", "2:00:00", "--workers", 2),
        *("--tasks-per-job", 2, "--sbatch", "account=physics"),
        env={"PATH": f"{bin_dir}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert contents(folder / "slurm") == contents(folder / "whole")
    script = log.read_text()
    for line in ("partition=cpu", "time=2:00:00", "array=0-1%2", "cpus-per-task=1", "account=physics"):
        assert f"#SBATCH --{line}" in script
    assert script.count("#!/bin/bash") == 1  # no second job to merge statistics


def test_a_slurm_job_that_is_gone_is_told(given, tmp_path):
    folder, _answer = given
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name, text in (("sbatch", "echo Submitted batch job 7"), ("squeue", "true")):
        (bin_dir / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_dir / name).chmod(0o755)
    environment = {"PATH": f"{bin_dir}:{os.environ['PATH']}"}
    done = command(folder, "gone", "--executor", "slurm", "--partition", "cpu", env=environment)
    assert done.returncode == 1
    assert "Slurm job 7 ended with 0 of 4 tasks done" in done.stderr
    assert command(folder, "gone").returncode == 0  # the same work goes on here
    assert contents(folder / "gone") == contents(folder / "whole")


def test_the_shards_are_trained_on(given):
    folder, _answer = given
    tiny.write_model(folder / "model")
    state = tiny.train(folder, data__path=str(folder / "whole"), data__format="tokens", trainer__max_steps=3)
    assert state.step == 3


def test_help_loads_neither_torch_nor_datatrove():
    for words in ("--help", "tokenize --help"):
        code = (
            "import sys; from protolith.cli.main import main; "
            f"main({words.split()!r}); "
            "print([m for m in ('torch', 'datatrove', 'numpy', 'fsspec', 'tokenizers') if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=tiny.environment(), check=True
        )
        assert done.stdout.splitlines()[-1] == "[]", words


def test_text_in_an_object_store_makes_the_same_shards(s3, tmp_path):
    """JSONL, compressed and Parquet objects of a real server, named as a folder, also while it is frozen."""
    tiny.write_tokenizer(tmp_path / "tok")
    texts = [tiny.document(number) for number in range(300)]
    folder = tmp_path / "text"
    tiny.write_corpus(folder / "a.jsonl", 100)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[100:200])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[200:]}), folder / "c.parquet")
    local = tiny.cli("tokenize", folder, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "local")
    assert local.returncode == 0, local.stderr
    url = s3.upload(folder)
    with s3.frozen():
        going = tiny.start("tokenize", url, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "remote")
        time.sleep(4)
        assert going.poll() is None
    said, _ = going.communicate(timeout=120)
    assert going.returncode == 0, said
    for name in ("00000.ds", "00000.ds.index"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    gone = tiny.cli("tokenize", f"{url}/nowhere", "--tokenizer", tmp_path / "tok", "--output", tmp_path / "x")
    assert gone.returncode == 3 and "nowhere" in gone.stderr
