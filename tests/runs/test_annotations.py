"""Tags and notes: changes accumulate, and an interrupted write loses nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, RunError
from rove.runs.annotations import (
    FILE,
    MAX_NOTE_CHARS,
    MAX_TAG_CHARS,
    Annotation,
    Annotations,
    Change,
    RolloutId,
    annotate,
)

FIRST_ROLLOUT, OTHER_ROLLOUT = RolloutId("key", 0), RolloutId("key", 1, step=3)


def test_changes_add_up_per_rollout_and_for_the_run(tmp_path: Path):
    assert Annotations(tmp_path).run == Annotation()
    annotate(tmp_path, Change(["good", "odd"], rollout=FIRST_ROLLOUT))
    annotate(tmp_path, Change(["keep"]))
    annotate(tmp_path, Change(["bad"], ["good", "never there"], "why?", OTHER_ROLLOUT))
    annotate(tmp_path, Change(remove=["odd"], note="look", rollout=FIRST_ROLLOUT))
    stored = Annotations(tmp_path)
    assert stored.run == (("keep",), "")
    assert stored.rollouts == {(None, "key", 0): (("good",), "look"), (3, "key", 1): (("bad",), "why?")}
    assert stored.tags() == ["bad", "good"]
    annotate(tmp_path, Change(remove=["good"], note="", rollout=FIRST_ROLLOUT))
    stored.reload()
    assert list(stored.rollouts) == [(3, "key", 1)]


@given(st.integers(0, 400))
def test_a_torn_line_is_ignored_and_later_changes_are_kept(tmp_path_factory: pytest.TempPathFactory, size: int):
    folder = tmp_path_factory.mktemp("run")
    for tag in ("a", "b", "c"):
        annotate(folder, Change([tag], rollout=FIRST_ROLLOUT))
    content = (folder / FILE).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    os.truncate(folder / FILE, min(size, len(content)))
    complete = tuple("abc"[: sum(end <= size for end in ends)])
    stored = Annotations(folder)
    assert (stored.rollouts.get(FIRST_ROLLOUT.key, Annotation()).tags, stored.bad) == (complete, [])
    annotate(folder, Change(["d"], rollout=FIRST_ROLLOUT))
    stored.reload()
    assert (stored.rollouts[FIRST_ROLLOUT.key].tags, stored.bad) == ((*complete, "d"), [])


def test_concurrent_annotations_lose_nothing(tmp_path: Path):
    def work(name: int) -> None:
        for i in range(20):
            annotate(tmp_path, Change([f"{name}.{i}"], rollout=FIRST_ROLLOUT))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = Annotations(tmp_path)
    assert len(stored.rollouts[FIRST_ROLLOUT.key].tags) == 80 and not stored.bad


def test_invalid_lines_are_reported_and_fail_the_check(tmp_path: Path):
    lines = [
        b'{"add": ["good"], "rollout": {"example_key": "k", "rollout_index": 0}}',
        b"\xff\xfe",
        b'{"add": ["\\u202e"]}',
    ]
    (tmp_path / FILE).write_bytes(b"".join(line + b"\n" for line in [*lines, b'{"note": "of a run"}', b'{"add": 3}']))
    stored = Annotations(tmp_path)
    assert [number for number, _ in stored.bad] == [2, 3, 4, 5] and stored.tags() == ["good"]
    with pytest.raises(RunError, match=r"annotations.jsonl, line 2: not an annotation"):
        stored.check()


@each_row("tag", ["", " ", " a", "a ", "a\nb", "a\x1b[31m", "\u202egnp", "x" * (MAX_TAG_CHARS + 1)])
def test_tags_must_be_short_and_printable(tag: str):
    with pytest.raises(ValueError, match="a tag is"):
        Change([tag])
    with pytest.raises(ValueError, match="a tag is"):
        Change(remove=[tag])


def test_invalid_changes_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="the change is empty"):
        annotate(tmp_path, Change(rollout=FIRST_ROLLOUT))
    with pytest.raises(ValueError, match="a run cannot have a note"):
        Change(note="x")
    with pytest.raises(ValueError, match="expected at most 20,000"):
        Change(note="x" * (MAX_NOTE_CHARS + 1), rollout=FIRST_ROLLOUT)
    with pytest.raises(ValueError, match="in one change"):
        Change([str(i) for i in range(100)])
    assert not (tmp_path / FILE).exists()


changes = st.builds(
    Change,
    st.lists(st.sampled_from("abc"), max_size=2),
    st.lists(st.sampled_from("abc"), max_size=2),
    st.none() | st.text(max_size=3),
    st.sampled_from([FIRST_ROLLOUT, OTHER_ROLLOUT]),
)


@given(st.lists(changes, max_size=12))
def test_reading_applies_all_changes_in_order(changes: list[Change]):
    with TemporaryDirectory() as name:
        check_replay(Path(name), changes)


def check_replay(folder: Path, changes: list[Change]) -> None:
    (folder / FILE).write_bytes(b"".join(msgspec.json.encode(change) + b"\n" for change in changes))
    for key in (FIRST_ROLLOUT, OTHER_ROLLOUT):
        tags: list[str] = []
        note = ""
        for change in changes:
            if change.rollout == key:
                tags = [tag for tag in tags if tag not in change.remove]
                tags += [tag for tag in dict.fromkeys(change.add) if tag not in tags]
                note = note if change.note is None else change.note
        assert Annotations(folder).rollouts.get(key.key, Annotation()) == (tuple(tags), note)
