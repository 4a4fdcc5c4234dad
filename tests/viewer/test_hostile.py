"""Test untrusted run folders: no file outside of them is read or changed, nothing hangs, and all errors are rove errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from run_folders import make_record, write_run_folder
from tiers import first_quick, some_broad, some_quick
from train_folders import write_train_folder

from rove.core.errors import Error, RunError
from rove.envs.multi_turn import SingleTurnEnv
from rove.rollouts.export import RunRows, write_rows
from rove.rollouts.rescore import rescore, settings_of
from rove.runs.annotations import Change, annotate
from rove.runs.run import Run
from rove.runs.token_stats import read_tokens, write_tokens
from rove.stages.comparison import read_run
from rove.viewer.api import ENDPOINTS, QueryParams
from rove.viewer.app import make_viewer
from rove.viewer.index import Index
from rove.viewer.report import markdown, stages_markdown, write_report, write_stages_report
from rove.viewer.run_store import RunStore

RUN_FILES = (
    "config.toml",
    "versions.json",
    "summary.json",
    "stopped.json",
    "rollouts.jsonl",
    "metrics.jsonl",
    "alerts.jsonl",
    "annotations.jsonl",
)
GARBAGE: dict[str, bytes] = {
    "bytes that are no text": b"\xff\xfe\x00",
    "half of an object": b'{"reward": \n{"step": 1,',
    "a list": b"[[1], 2]\n[3]\n",
    "nested 3,000 deep": b"a = " + b"[" * 3000,
    "dotted names 400 deep": b".".join([b"a"] * 400) + b" = 1\n",
    "an integer of 5,000 digits": b"a = " + b"9" * 5000,
    "JSON nested 3,000 deep": b"[" * 3000 + b"\n",
    "values of other types": b'{"reward": 3, "functions": [], "scored": "x", "why": 5, "step": "one", "stops": {"a": "b"}}\n',
    "integers that are too large": b'{"step": 1' + b"0" * 30 + b', "scored": 1' + b"0" * 30 + b"}\n",
    "nothing": b"",
}
CONFIGS: dict[str, str] = {
    "kind is a number": "kind = 3\n[identity]\n[config]",
    "identity is a text": 'kind = "eval"\nidentity = "x"\n[config]',
    "config is a list": 'kind = "eval"\nconfig = []\n[identity]',
    "numbers are texts": 'kind = "eval"\n[identity]\n[config]\nnum_examples = "a"\nrollouts_per_example = 9999999999',
    "threshold is a table": 'kind = "eval"\n[identity]\n[config.pass_threshold]\nx = 1',
    "price is negative": 'kind = "eval"\n[identity]\n[config]\nseed = 0\nprice = {input = -1.0, output = 1.0}',
    "price is a list": 'kind = "eval"\n[identity]\n[config]\nprice = [1, 2]',
    "price has other names": 'kind = "eval"\n[identity]\n[config.price]\nx = 1.0',
    "steps is a list": 'kind = "rl"\n[identity]\n[config]\nsteps = [1]',
    "env is nested": f'kind = "rl"\n[identity]\n[config]\nenv = {"[" * 90}{"]" * 90}',
    "model has a zero byte": 'kind = "rl"\n[identity]\n[config]\nmodel = "a\\u0000b"\nenv = ["x"]',
    "an unknown kind": 'kind = "\\u001b[31m"\n[identity]\n[config]\nenv = 5',
}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Fail a test that hangs on a named pipe."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError("waited for a file that never ends")

    old_handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old_handler)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """Create a file of the user outside of all run folders."""
    file = tmp_path / "victim"
    file.write_bytes(b"years of work")
    return file


def make_full_run(path: Path, kind: str = "eval") -> Run:
    """Create a run folder with all kinds of files."""
    run = write_run_folder(
        path, [make_record(0, 0), make_record(1, 0, 0.0), make_record(1, 1, None)], kind=kind, seed=0
    )
    run.append_metrics({"step": 1, "reward/mean": 0.5})
    run.append_alert({"step": 1, "id": "x", "text": "y"})
    run.write_json("stopped.json", {"why": "interrupted"})
    annotate(path, Change(["good"]))
    run.close()
    return run


def use_run(path: Path, output: Path) -> list[str]:
    """Use a run folder in every way that only reads it; return the error messages."""
    store, errors = RunStore(path.parent), []

    def attempt(use: Callable[[], object]) -> None:
        try:
            use()
        except Error as error:
            errors.append(str(error))

    def call_api(name: str) -> None:
        params = {"run": path.name, "line": "0", "name": "reward", "a": path.name, "b": "good", "as": "curl"}
        msgspec.json.encode(ENDPOINTS[name](store, QueryParams(list(params.items()))))

    run = Run(path)
    for name in ENDPOINTS.keys() - {"stages"}:  # the page of a folder of `rove train`
        attempt(lambda name=name: call_api(name))
    attempt(lambda: write_report(run, output / "report.html"))
    attempt(lambda: markdown(run))
    attempt(lambda: read_run(str(path)))
    attempt(lambda: write_rows(RunRows(run), output / "rows.jsonl", "jsonl"))
    attempt(lambda: settings_of(run))
    attempt(lambda: asyncio.run(rescore(SingleTurnEnv(dataset=[{"question": "?"}]), run, into=output / "rescored")))
    store.close()
    return errors


def check_listed(path: Path) -> dict[str, Any]:
    """Return the row of the run in the viewer's list; check that the good run is listed too."""
    store = RunStore(path.parent)
    rows = {row["name"]: row for row in ENDPOINTS["runs"](store, QueryParams([]))["runs"]}
    store.close()
    assert rows["good"]["status"] == "stopped" and "trouble" not in rows["good"]
    return rows[path.name]


def replace_file(path: Path, kind: str, user_file: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(user_file)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", some_broad(["link", "pipe", "folder", "device"], 3))
@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("run_kind", some_broad(["rl", "eval"], 2))
def test_only_regular_files_of_a_run_folder_are_opened(
    tmp_path: Path, user_file: Path, name: str, kind: str, run_kind: str
):
    make_full_run(tmp_path / "runs/good")
    run = make_full_run(tmp_path / "runs/bad", run_kind)
    replace_file(run.path / name, kind, user_file)
    assert any(name in error for error in use_run(run.path, tmp_path))
    if (name, kind) != ("config.toml", "folder"):  # without config.toml, the folder is not a run
        row = check_listed(run.path)
        assert row["status"] == "unreadable" and name in row["trouble"]
    assert user_file.read_bytes() == b"years of work"


@pytest.mark.parametrize("name", ["rollouts.jsonl", "metrics.jsonl"])
def test_a_named_pipe_is_refused_by_name(tmp_path: Path, user_file: Path, name: str):
    make_full_run(tmp_path / "runs/good")
    run = make_full_run(tmp_path / "runs/bad")
    replace_file(run.path / name, "pipe", user_file)
    with pytest.raises(RunError, match=rf"{name} is a named pipe; expected a regular file. Remove it"):
        list(run.outcomes() if name == "rollouts.jsonl" else run.metrics())
    assert check_listed(run.path)["status"] == "unreadable"


@pytest.mark.parametrize("garbage", some_broad(GARBAGE, 8))
@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("run_kind", some_broad(["rl", "eval"], 2))
def test_invalid_file_contents_cause_only_rove_errors(tmp_path: Path, name: str, garbage: str, run_kind: str):
    make_full_run(tmp_path / "runs/good")
    run = make_full_run(tmp_path / "runs/bad", run_kind)
    (run.path / name).write_bytes(GARBAGE[garbage])
    use_run(run.path, tmp_path)
    check_listed(run.path)


@pytest.mark.parametrize("name", some_quick(CONFIGS, 4, broad_every=8))
def test_invalid_settings_are_errors_that_name_the_file(tmp_path: Path, name: str):
    make_full_run(tmp_path / "runs/good")
    run = make_full_run(tmp_path / "runs/bad")
    (run.path / "config.toml").write_text(CONFIGS[name])
    errors = use_run(run.path, tmp_path)
    assert not [error for error in errors if "config.toml" not in error and "not the run of an evaluation" not in error]
    check_listed(run.path)


@pytest.mark.parametrize(
    "summary",
    [
        {"reward": 3},
        {"reward": {"mean": "high"}},
        {"functions": {"win": 1}},
        {"stops": ["a"]},
        {"scored": "many"},
        {"latency": {"answer": 3}},
        {"cost": {"total": []}},
        {"pass@k": {"1": None}},
    ],
    ids=str,
)
def test_an_invalid_summary_is_an_error_that_names_the_file(tmp_path: Path, summary: dict[str, Any]):
    make_full_run(tmp_path / "runs/good")
    run = make_full_run(tmp_path / "runs/bad")
    run.finish(summary)
    with pytest.raises(RunError, match=r"summary\.json is damaged, or not a file that rove wrote: .*Expected"):
        markdown(run)
    assert "summary.json" in check_listed(run.path)["trouble"]


def super_journal(user_file: Path) -> bytes:
    """Return a journal that makes SQLite delete the file when it opens the database."""
    header = struct.pack(">8sIIIII", bytes.fromhex("d9d505f920a163d7"), 0, 0, 1, 512, 4096).ljust(512, b"\0")
    name = os.fsencode(user_file)
    tail = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    return header + struct.pack(">I", 0x40000000 // 4096 + 1) + name + tail


def test_an_index_in_the_run_folder_is_never_opened(tmp_path: Path, user_file: Path):
    run = make_full_run(tmp_path / "runs/bad")
    database = tmp_path / "contacts.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE people (name)")
    connection.close()
    content_before = database.read_bytes()
    (run.path / "index.sqlite").symlink_to(database)
    (run.path / "index.sqlite-journal").write_bytes(super_journal(user_file))
    make_full_run(tmp_path / "runs/good")
    use_run(run.path, tmp_path)
    assert check_listed(run.path)["rollouts"] == 3
    assert database.read_bytes() == content_before
    assert user_file.exists() and (run.path / "index.sqlite-journal").exists()


def test_a_forged_index_in_the_run_folder_is_ignored(tmp_path: Path):
    run = make_full_run(tmp_path / "runs/bad")
    index = Index(run.path / "rollouts.jsonl")
    index.catch_up()
    index.query("UPDATE rollouts SET reward = 99.125")
    index.close()
    assert index.store is not None
    os.replace(index.store, run.path / "index.sqlite")
    write_report(run, tmp_path / "report.html")
    assert "99.125" not in markdown(run)
    store = RunStore(run.path)
    rows = ENDPOINTS["rollouts"](store, QueryParams([("run", "bad")]))["rows"]
    store.close()
    assert [row["reward"] for row in rows] == [pytest.approx(1.2), pytest.approx(0.2), None]


@pytest.mark.parametrize("run_kind", ["eval", "rl"])
@pytest.mark.parametrize("wins", some_quick([[1e308, 1e308], [1e308, -1e308], [-1e308, -1e308]], 3), ids=str)
def test_rewards_too_large_for_a_mean_do_not_hide_other_runs(tmp_path: Path, wins: list[float], run_kind: str):
    make_full_run(tmp_path / "runs/good")
    step = 1 if run_kind == "rl" else None
    records = [make_record(i // 2, i % 2, win, step=step) for i, win in enumerate(wins * 4)]
    write_run_folder(tmp_path / "runs/bad", records, kind=run_kind, seed=0)
    for error in use_run(tmp_path / "runs/bad", tmp_path):
        assert "too large" in error or "metrics" in error or "evaluation" in error
    row = check_listed(tmp_path / "runs/bad")
    assert "too large" in row.get("trouble", "too large")


async def test_folder_names_that_are_not_utf8_do_not_hide_other_runs(tmp_path: Path):
    make_full_run(tmp_path / "runs/good")
    invalid_name = Path(os.fsdecode(os.fsencode(tmp_path / "runs") + b"/\xff\xfe"))
    os.rename(make_full_run(tmp_path / "runs/renamed").path, invalid_name)
    nested = make_full_run(tmp_path / "runs/deep")
    (nested.path / "config.toml").write_text(f"a = {'[' * 90}{']' * 90}")
    os.close(os.open(os.fsencode(nested.path) + b"/\xff", os.O_CREAT))
    async with TestClient(TestServer(make_viewer(RunStore(tmp_path / "runs")))) as client:
        answer = await client.get("/api/runs")
        assert answer.status == 200
        rows = {row["name"]: row for row in (await answer.json())["runs"]}
        assert rows["??"]["status"] == "unreadable" and "rename the folder" in rows["??"]["trouble"]
        assert rows["deep"]["status"] == "unreadable" and rows["good"]["status"] == "stopped"
        answer = await client.get("/api/run", params={"run": "nothing"})
        assert answer.status == 400 and "known: deep, good, ??" in (await answer.json())["error"]
    async with TestClient(TestServer(make_viewer(RunStore(invalid_name)))) as client:
        assert (await client.get("/api/runs")).status == 200
    assert "report" in write_report(Run(invalid_name), tmp_path / "report.html").name
    markdown(Run(invalid_name)).encode()


def test_markdown_shows_versions_and_paths_as_text(tmp_path: Path):
    run = make_full_run(tmp_path / "a`b``c\n# d")
    hostile = "1 | <img src=x> [a](b) `c`\n# Title \x1b[31m &lt;"
    (run.path / "versions.json").write_bytes(msgspec.json.encode([{"rove": hostile, "python": "3"}]))
    last = markdown(run).splitlines()[-1]
    assert last.startswith("Repeat: ```rove eval @ ") and "``` (rove 1 " in last
    assert r"1 \| \<img src=x\> \[a\]\(b\) \`c\` \# Title \[31m \&lt;" in last
    assert "\x1b" not in last and "# Title" not in markdown(run).splitlines()


@pytest.mark.parametrize("content", ['{"rove": "1"}', "[3]", '[{"rove": 1}]', "[]", "{"])
def test_invalid_versions_are_shown_as_missing(tmp_path: Path, content: str):
    run = make_full_run(tmp_path / "run")
    (run.path / "versions.json").write_text(content)
    assert "rove 0" not in markdown(run)
    assert write_report(run, tmp_path / "report.html").exists()


# Writing into a run folder: resuming, annotating, reports


def test_a_draft_that_is_a_symbolic_link_is_replaced(tmp_path: Path, user_file: Path):
    run = make_full_run(tmp_path / "run")
    for name in (".report.html.draft", "report.html", ".data.jsonl.draft"):
        (run.path / name).symlink_to(user_file)
    write_report(run, run.path / "report.html")
    write_rows(RunRows(run), run.path / "data.jsonl", "jsonl")
    assert user_file.read_bytes() == b"years of work"
    assert not (run.path / "report.html").is_symlink()


WRITTEN_FILES = (
    "rollouts.jsonl",
    "metrics.jsonl",
    "alerts.jsonl",
    "limits.jsonl",
    "versions.json",
    ".config.toml.draft",
    ".lock",
    "tokens",
    "checkpoints",
    "checkpoints/1",
    "checkpoints/.1.draft",
    "evaluations",
    "final",
    ".final.old",
)


@pytest.mark.parametrize("name", some_quick(WRITTEN_FILES, 3))
@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe"])
def test_a_run_with_a_link_or_pipe_cannot_be_resumed(tmp_path: Path, user_file: Path, name: str, kind: str):
    run = make_full_run(tmp_path / "run", "rl")
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "1.json").write_bytes(b"{}")
    file = run.path / name
    file.parent.mkdir(exist_ok=True)
    replace_file(file, kind.split()[0], target if kind == "link to a folder" else user_file)
    config = run.config()
    with pytest.raises(RunError, match=r"is a (symbolic link|named pipe); expected a regular file"):
        run.start("rl", config["config"], config["identity"])
    run.close()
    with suppress(RunError):  # overwriting replaces links and does not follow them
        run.start("rl", config["config"], config["identity"], overwrite=True)
    run.close()
    assert user_file.read_bytes() == b"years of work" and (target / "1.json").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_annotations_are_not_written_through_a_link_or_pipe(tmp_path: Path, user_file: Path, kind: str):
    run = make_full_run(tmp_path / "run")
    replace_file(run.path / "annotations.jsonl", kind, user_file)
    with pytest.raises(RunError, match=r"annotations\.jsonl is a"):
        annotate(run.path, Change(["bad"]))
    assert user_file.read_bytes() == b"years of work"


def test_tokens_are_not_read_through_a_linked_folder(tmp_path: Path):
    write_tokens(tmp_path, 1, [])
    run = make_full_run(tmp_path / "run")
    (run.path / "tokens").symlink_to(tmp_path / "tokens")
    with pytest.raises(RunError, match="tokens is a symbolic link"):
        read_tokens(run.path, 1)


TRAIN_ROWS = [
    {
        "name": "+ RL",
        "model": "m",
        "conditions": {"greedy": {"reward": "much", "tokens_per_rollout": 3, "truncation_share": "x"}},
    },
    {"name": "+ RL", "model": "m", "conditions": {"greedy": {"reward": {"mean": "much", "low": [], "high": 1}}}},
    {"name": "+ RL", "model": "m", "conditions": {"../../good": {"reward": {"mean": 1e400}}}},
    {"name": "+ \ud7ff", "model": "\x1b[31m", "conditions": {}},
]


@pytest.mark.parametrize(
    "name", first_quick(["results.json", "complete.json", "diagnoses.json", "rl1/summary.json", "recipe.toml"])
)
def test_damaged_files_of_a_training_cause_only_rove_errors(tmp_path: Path, name: str):
    make_full_run(tmp_path / "runs/good")
    folder = write_train_folder(tmp_path / "runs/bad")
    contents = [
        *GARBAGE.values(),
        *(msgspec.json.encode([row]) for row in TRAIN_ROWS),
        b'{"best": [], "stopped": {}}',
        b"[{}]",
    ]
    for content in contents:
        (folder.path / name).write_bytes(content)
        store = RunStore(tmp_path / "runs")
        try:
            msgspec.json.encode(ENDPOINTS["stages"](store, QueryParams([("run", "bad")])))
            write_stages_report(folder, tmp_path / "report.html")
            stages_markdown(folder)
        except Error as error:
            assert name.rpartition("/")[2] in str(error) or "cannot be shown" in str(error)
        rows = {row["name"]: row for row in ENDPOINTS["runs"](store, QueryParams([]))["runs"]}
        assert rows["good"]["kind"] == "eval"
        store.close()
