"""Run folders: resumed only by the same run, written atomically and by one process at a time."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.digest import fingerprint
from rove.core.errors import RunError
from rove.core.records import ErrorInfo
from rove.runs.run import Progress, Run
from rove.runs.serialization import CHECKSUM_BYTES
from rove.runs.token_stats import TrainedRollout, read_tokens, write_tokens
from tests.runs.test_serialization import make_record

IDENTITY = {"env": "toy", "model": "m", "sampling": {"temperature": 1.0}}


def start(path: Path, identity=IDENTITY, kind: str = "eval", overwrite: bool = False) -> Run:
    run = Run(path)
    run.start(kind, {"note": "for people"}, identity, overwrite)
    return run


def record(index: int):
    return make_record(example_id=index, answer="a" * (index % 5))


# Identity


def test_a_folder_is_started_and_then_continued(tmp_path):
    with Run(tmp_path / "a" / "b") as run:
        assert not run.start("eval", {"x": 1}, IDENTITY)
    with Run(tmp_path / "a" / "b") as run:
        assert run.start("eval", {"x": 2}, IDENTITY)
        assert run.config() == {"kind": "eval", "identity": IDENTITY, "config": {"x": 2}}


def test_another_identity_is_refused_with_the_differences(tmp_path):
    with start(tmp_path) as run:
        run.append_metrics({"step": 1})
    content_before = (tmp_path / "config.toml").read_bytes()
    other_identity = {"env": "toy", "sampling": {"temperature": 0.5}, "seed": 1}
    with pytest.raises(RunError) as caught:
        start(tmp_path, other_identity, kind="rl")
    assert str(caught.value).splitlines() == [
        f"{tmp_path} holds a different run; differences:",
        "  kind: was 'eval', now 'rl'",
        "  model: was 'm', now None",
        "  sampling.temperature: was 1.0, now 0.5",
        "  seed: was None, now 1",
        "Pass another --run-dir, or --overwrite to delete the old run (run_dir and overwrite in Python)",
    ]
    assert (tmp_path / "config.toml").read_bytes() == content_before


def test_the_error_mentions_that_all_rollouts_of_the_old_run_failed(tmp_path):
    failed = make_record(scores=None, error=ErrorInfo("env", "TypeError", "no"))
    with start(tmp_path) as run:
        run.append_rollout(failed)
    with pytest.raises(RunError, match="All rollouts of the old run failed: pass --overwrite to delete it, or another"):
        start(tmp_path, {"env": "toy#2"})
    assert len(list(Run(tmp_path).rollouts())) == 1
    with start(tmp_path) as run:
        run.append_rollout(make_record())
    with pytest.raises(RunError, match="Pass another --run-dir, or --overwrite to delete the old run"):
        start(tmp_path, {"env": "toy#2"})


def test_a_folder_without_results_can_be_used_by_another_run(tmp_path):
    start(tmp_path).close()
    with Run(tmp_path) as run:
        assert not run.start("rl", {"new": 1}, {"seed": 1})
    assert Run(tmp_path).config()["config"] == {"new": 1}


def test_a_refused_run_does_not_keep_the_folder_locked(tmp_path):
    with start(tmp_path) as run:
        run.append_metrics({"step": 1})
    refused = Run(tmp_path)
    with pytest.raises(RunError, match="holds a different run"):
        refused.start("rl", {}, IDENTITY)
    start(tmp_path).close()


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (KeyboardInterrupt(), "interrupted by the user"),
        (RunError("the server is gone\nits log: oh no"), "the server is gone\nits log: oh no"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_the_stop_reason_is_recorded_until_resume(tmp_path, error, reported):
    with pytest.raises(type(error)), start(tmp_path) as run:
        raise error
    assert run.why_stopped() == reported
    with start(tmp_path) as run:
        assert run.why_stopped() == ""
    assert run.why_stopped() == ""


def test_a_full_disk_does_not_hide_the_original_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with pytest.raises(ZeroDivisionError), start(tmp_path):
        monkeypatch.setattr("rove.runs.run.atomic_write", full)
        raise ZeroDivisionError
    monkeypatch.undo()
    with start(tmp_path):
        pass  # the folder is not locked


def test_an_error_of_another_process_is_not_recorded(tmp_path):
    with start(tmp_path), pytest.raises(RunError, match="another process"), Run(tmp_path) as second:
        second.start("eval", {}, IDENTITY)
    assert Run(tmp_path).why_stopped() == ""


def test_overwrite_deletes_the_old_run(tmp_path):
    with start(tmp_path) as run:
        run.append_rollout(record(0))
        run.save_checkpoint("1", lambda path: None)
        run.write_json("summary.json", {})
    with start(tmp_path, {"env": "other"}, overwrite=True) as run:
        assert list(run.rollouts()) == []
        assert run.summary() is None
        assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(("name", "part"), [("model", "final"), ("data", ".")])
def test_overwrite_never_deletes_the_model_or_the_data_of_the_new_run(tmp_path, name: str, part: str):
    with start(tmp_path):
        (tmp_path / "final").mkdir()
    with Run(tmp_path) as run, pytest.raises(RunError, match=f"the {name} .* is in the run folder .* would delete"):
        run.start("rl", {name: str(tmp_path / part)}, IDENTITY, overwrite=True)
    assert (tmp_path / "final").is_dir()
    start(tmp_path).close()  # nothing was deleted, and the lock is free


def test_overwrite_never_empties_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="is not a run folder"):
        start(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_with_a_foreign_config_is_refused(tmp_path):
    (tmp_path / "config.toml").write_text('title = "my site"')
    for overwrite in (False, True):
        with pytest.raises(RunError, match="is not a run folder"):
            start(tmp_path, overwrite=overwrite)
    assert (tmp_path / "config.toml").read_text() == 'title = "my site"'


def test_overwrite_deletes_only_files_of_the_run(tmp_path):
    start(tmp_path).close()
    (tmp_path / "notes.md").write_text("mine")
    start(tmp_path, overwrite=True).close()
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_overwrite_works_without_an_old_run(tmp_path):
    start(tmp_path / "new", overwrite=True).close()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".config.toml.draft").write_text("[iden")  # a run killed during its creation
    start(tmp_path / "killed", overwrite=True).close()
    assert all((tmp_path / name / "config.toml").exists() for name in ("new", "killed"))


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
identities = st.dictionaries(
    keys,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | keys,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)


@given(identities)
@settings(max_examples=50, deadline=None)
def test_any_identity_is_recognized_on_resume(identity):
    with tempfile.TemporaryDirectory() as folder:
        start(Path(folder), identity).close()
        with Run(folder) as run:
            assert run.start("eval", {}, identity)


@given(identities)
def test_fingerprints_depend_on_the_identity_but_not_on_its_order(identity):
    assert fingerprint(identity) == fingerprint(dict(reversed(identity.items())))
    assert len({fingerprint({**identity, "seed": seed}) for seed in (1, 2, None)}) == 3


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        Run(tmp_path).config()


# Lines


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_truncation_at_any_byte_keeps_all_complete_lines(data):
    records = [record(i) for i in range(data.draw(st.integers(0, 5)))]
    with tempfile.TemporaryDirectory() as folder:
        with start(Path(folder)) as run:
            for rollout in records:
                run.append_rollout(rollout)
                run.append_metrics({"step": rollout.example_id})
        survivors = {}
        for name in ("rollouts.jsonl", "metrics.jsonl"):
            file = Path(folder) / name
            content = file.read_bytes() if file.exists() else b""
            cut = data.draw(st.integers(0, len(content)))
            file.write_bytes(content[:cut])
            survivors[name] = content[:cut].count(b"\n")
        assert list(Run(folder).rollouts()) == records[: survivors["rollouts.jsonl"]]  # readable without repair
        with start(Path(folder)) as run:
            run.append_rollout(record(9))
            run.append_metrics({"step": 9})
            assert list(run.rollouts()) == [*records[: survivors["rollouts.jsonl"]], record(9)]
            assert [m["step"] for m in run.metrics()] == [*range(survivors["metrics.jsonl"]), 9]


def test_a_torn_line_longer_than_the_read_buffer_is_removed(tmp_path):
    with start(tmp_path) as run:
        run.append_rollout(record(0))
    with (tmp_path / "rollouts.jsonl").open("ab") as file:
        file.write(b"x" * 200_000)
    with start(tmp_path) as run:
        assert list(run.rollouts()) == [record(0)]


def test_reading_a_missing_folder_creates_nothing(tmp_path):
    assert list(Run(tmp_path / "none").rollouts()) == []
    assert Run(tmp_path / "none").metrics() == []
    assert Run(tmp_path / "none").last_checkpoint() is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("flipped", [b"0", b"\xff"])
def test_a_damaged_rollout_is_an_error_that_names_the_line(tmp_path, flipped: bytes):
    with start(tmp_path) as run:
        for index in range(3):
            run.append_rollout(record(index))
    file = tmp_path / "rollouts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    reward = lines[1].index(b'"seed":') + len(b'"seed":')
    lines[1] = lines[1][:reward] + flipped + lines[1][reward + 1 :]
    file.write_bytes(b"".join(lines))
    readers = {
        "line 2": [lambda: list(run.rollouts()), lambda: list(run.outcomes()), run.ledger],
        f"byte {len(lines[0])}": [lambda: run.record_at(len(lines[0])), lambda: run.outcome_at(len(lines[0]))],
    }
    for location, functions in readers.items():
        for read in functions:
            with pytest.raises(RunError, match=rf"rollouts\.jsonl, .*{location}: the line differs from its checksum"):
                read()
    run.close()


def test_lines_without_a_checksum_are_read(tmp_path):
    with start(tmp_path) as run:
        run.append_rollout(record(0))
    file = tmp_path / "rollouts.jsonl"
    line = file.read_bytes()
    file.write_bytes(line[: -CHECKSUM_BYTES - 1] + b"}\n")
    assert list(run.rollouts()) == [record(0)]


def test_a_changed_config_is_named_where_a_run_differs(tmp_path):
    with start(tmp_path) as run:
        run.append_metrics({"step": 1})
    file = tmp_path / "config.toml"
    file.write_bytes(file.read_bytes().replace(b'"toy"', b'"tox"'))
    with pytest.raises(RunError, match=r"config\.toml is damaged, was edited, or is from another machine"):
        start(tmp_path)


# Processes


def in_another_process(code: str, path: Path) -> subprocess.CompletedProcess:
    script = f"import os\nfrom rove.runs.run import Run\nrun = Run({str(path)!r})\n{code}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=env)


@pytest.mark.broad
def test_a_second_process_is_refused_until_the_first_is_done(tmp_path):
    run = start(tmp_path)
    code = f"run.start('eval', {{}}, {IDENTITY!r})"
    done = in_another_process(code, tmp_path)
    assert f"RunError: another process is writing to {tmp_path}; wait for it" in done.stderr
    run.close()
    assert in_another_process(code, tmp_path).returncode == 0


def test_a_crashed_process_leaves_its_rollouts_and_no_lock(tmp_path):
    code = f"""
from tests.runs.test_serialization import make_record
run.start("eval", {{}}, {IDENTITY!r})
run.append_rollout(make_record(example_id=1))
os.write(run._files["rollouts.jsonl"].fileno(), b'{{"record": {{"exam')
os._exit(9)
"""
    done = in_another_process(code, tmp_path)
    assert done.returncode == 9, done.stderr
    with Run(tmp_path) as run:
        assert run.start("eval", {}, IDENTITY)
        assert list(run.rollouts()) == [make_record(example_id=1)]


# Checkpoints


def writes(text: str):
    return lambda path: (path / "weights").write_text(text)


def broken(path: Path):
    (path / "weights").write_text("half")
    raise OSError("disk full")


def test_checkpoints_are_written_atomically(tmp_path):
    with start(tmp_path) as run:
        run.save_checkpoint("1", writes("one"), run.progress(1, {"best": 0.5}))
        with pytest.raises(RunError, match="disk full"):
            run.save_checkpoint("1", broken, run.progress(1, {}))
        with pytest.raises(RunError, match="disk full"):
            run.save_checkpoint("2", broken, run.progress(2, {}))
        last = run.last_checkpoint()
        assert last is not None
        path, progress = last
        assert path == tmp_path / "checkpoints" / "1"
        assert (path / "weights").read_text() == "one"
        assert (progress.step, progress.state) == (1, {"best": 0.5})
        run.save_checkpoint("2", writes("two"), run.progress(2, {}))  # leftovers of the failed attempt do no harm
        assert [p.name for p in sorted((tmp_path / "checkpoints").glob("*2*"))] == ["2"]


def test_a_checkpoint_that_cannot_be_saved_is_an_error_and_leaves_no_draft(tmp_path):
    torch = importlib.import_module("torch")
    save_file = importlib.import_module("safetensors.torch").save_file
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # then a file that is too large is an error, as on a full disk
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        run.save_checkpoint("1", lambda folder: (folder / "weights").write_bytes(b"old"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(RunError, match=r"checkpoints/2 cannot be saved: .*\nMake room"):
                run.save_checkpoint("2", lambda folder: save_file({"w": torch.zeros(9999)}, folder / "w.safetensors"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1"]


def test_a_folder_name_that_is_not_utf8_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"is not text in UTF-8"):
        start(Path(os.fsdecode(bytes(tmp_path) + b"/\xff")))


@pytest.mark.parametrize("name", ["..old", "...old", ".config.toml.old", ".old"])
def test_leftovers_with_odd_names_do_not_stop_a_run(tmp_path, name):
    with Run(tmp_path) as run:
        run.start("eval", {}, {})
    (tmp_path / name).mkdir()
    with Run(tmp_path) as run:
        assert run.start("eval", {}, {})


def test_the_last_checkpoint_has_the_highest_step(tmp_path):
    with start(tmp_path) as run:
        for step in (9, 10, 2):
            run.save_checkpoint(str(step), writes(""), run.progress(step, {}))
        run.save_checkpoint("best", writes(""), run.progress(99, {}))
        run.save_checkpoint("11", writes(""))  # without progress it cannot be resumed from
        last = run.last_checkpoint()
        assert last is not None
        assert last[1].step == 10


def test_json_files_are_written_without_leftovers(tmp_path):
    with start(tmp_path) as run:
        run.write_json("summary.json", {"a": 1})
        run.write_json("summary.json", {"a": 2})
        assert run.summary() == {"a": 2}
    assert {path.name for path in tmp_path.glob(".*")} == {".lock", ".config.toml.seal"}


@pytest.mark.parametrize("keep", [0, 1, 2, 9])
def test_pruning_keeps_the_newest_numbered_checkpoints(keep, tmp_path):
    with start(tmp_path) as run:
        run.prune_checkpoints(keep)
        for name in ("best", "2", "9", "10"):
            run.save_checkpoint(name, writes(name))
        run.prune_checkpoints(keep)
        remaining = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert remaining == {"best", *["10", "9", "2"][:keep]}


def test_the_final_model_replaces_an_earlier_one(tmp_path):
    with start(tmp_path) as run:
        run.save_final(writes("first"))
        assert (run.save_final(writes("second")) / "weights").read_text() == "second"
        with pytest.raises(RunError, match="disk full"):
            run.save_final(broken)
    assert (tmp_path / "final" / "weights").read_text() == "second"


# Resuming training


def fill(run: Run, steps: range) -> None:
    for step in steps:
        run.append_rollout(record(step))
        run.append_metrics({"step": step})


def test_cut_drops_everything_newer_than_the_checkpoint(tmp_path):
    with start(tmp_path) as run:
        fill(run, range(3))
        progress = run.progress(3, {})
        fill(run, range(3, 5))
        run.cut(progress)
        assert [r.example_id for r in run.rollouts()] == [0, 1, 2]
        fill(run, range(3, 4))
        assert [r.example_id for r in run.rollouts()] == [0, 1, 2, 3]
        assert [m["step"] for m in run.metrics()] == [0, 1, 2, 3]
        run.cut(run.progress(4, {}))
        assert len(run.metrics()) == 4
        for step in (3, 4, 5):
            write_tokens(tmp_path, step, [TrainedRollout("key", step, [])])
        run.cut(msgspec.structs.replace(progress, step=4))
        assert [[rollout.rollout_index for rollout in read_tokens(tmp_path, step)] for step in (3, 4, 5)] == [
            [3],
            [4],
            [],
        ]
        run.cut(None)
        assert read_tokens(tmp_path, 3) == []
        assert list(run.rollouts()) == []
        assert run.metrics() == []


def test_progress_before_anything_was_written(tmp_path):
    with start(tmp_path) as run:
        progress = run.progress(0, {})
        assert progress == Progress(0, 0, 0, {}, progress.metrics_digest)
        run.cut(run.progress(0, {}))
        assert list(run.rollouts()) == []
