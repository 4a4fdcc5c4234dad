"""The terminal viewer with 80 × 24 characters, operated by keys."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import in_this_process
from hypothesis import given
from hypothesis import strategies as st
from made import made_run, record, scores
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, OptionList, Static

from rove.cli.terminal import Comparison, Facets, Rollout, Rollouts, Runs, Terminal
from rove.cli.terminal_format import Filter, inert
from rove.core.errors import ConfigError
from rove.runs.annotations import Annotations
from rove.viewer.run_store import RunStore

EVIL = "[red]\x1b[31m\x1b]0;title\x07\u202egnp[/red] [@click=app.quit]x[/]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    made_run(runs / "better", [record(example, i, 1.0) for example in range(3) for i in range(2)]).finish({})
    worse = [record(example, i, win) for example in range(3) for i, win in enumerate((0.0, 1.0, None))]
    made_run(runs / "worse", worse)
    with made_run(runs / "rl", [record(0, i, i, step=1) for i in range(2)], kind="rl", steps=9) as run:
        run.append_metrics({"step": 1, "reward/mean": 0.7})
        run.append_alert({"step": 1, "name": "x", "text": EVIL})
    return runs


@asynccontextmanager
async def open_viewer(folder: Path, annotate: bool = False) -> AsyncIterator[Pilot[None]]:
    store = RunStore(folder, annotate)
    async with Terminal(store).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        yield pilot
    store.close()


def screen_text(pilot: Pilot[None]) -> str:
    """Return the text on the screen."""
    return "\n".join("".join(part.text for part in line) for line in pilot.app.screen._compositor.render_strips())


def table(pilot: Pilot[None]) -> list[list[str]]:
    found = pilot.app.screen.query_one(DataTable)
    return [[cell.plain for cell in found.get_row_at(i)] for i in range(found.row_count)]


async def open_run(pilot: Pilot[None], run: str) -> None:
    found = pilot.app.screen.query_one(DataTable)
    found.move_cursor(row=found.get_row_index(run))
    await pilot.press("enter")
    await pilot.pause()


async def enter_text(pilot: Pilot[None], key: str, text: str) -> None:
    """Press a key and fill in the field that it opens."""
    await pilot.press(key)
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


async def test_runs_are_listed_and_found_by_text(folder: Path):
    async with open_viewer(folder) as pilot:
        assert isinstance(pilot.app.screen, Runs)
        rows = {row[1]: row for row in table(pilot)}
        assert rows["worse"][2:5] == ["stopped", rows["worse"][3], "9, 3 failed"]
        assert rows["better"][2] == "complete" and rows["rl"][4] == "1 of 9 steps"
        await enter_text(pilot, "slash", "wor")
        assert [row[1] for row in table(pilot)] == ["worse"]
        assert "1 of 3 with 'wor'" in screen_text(pilot)
        assert max(map(len, screen_text(pilot).splitlines())) <= 80


@pytest.mark.broad
async def test_rollouts_are_filtered_by_values_and_facets_and_sorted(folder: Path):
    async with open_viewer(folder) as pilot:
        await open_run(pilot, "worse")
        assert isinstance(pilot.app.screen, Rollouts) and "1 to 9 of 9 rollouts" in screen_text(pilot)
        assert [row[1] for row in table(pilot)][:3] == ["0.200", "1.200", "failed"]
        await enter_text(pilot, "slash", "win>=0.5 error=")
        assert [row[1] for row in table(pilot)] == ["1.200"] * 3 and "score.win>=0.5 error=" in screen_text(pilot)
        await enter_text(pilot, "slash", "wins=1")
        assert "did you mean 'win'" in screen_text(pilot) and len(table(pilot)) == 3  # the previous filter stays
        await enter_text(pilot, "slash", "")
        await pilot.press("f")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Facets)
        options = pilot.app.screen.query_one(OptionList)
        labels = [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]
        options.highlighted = labels.index("      3  error = model: InfraError")
        await pilot.press("enter")
        await pilot.pause()
        assert [row[1] for row in table(pilot)] == ["failed"] * 3
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, Runs)
        await open_run(pilot, "worse")
        for _ in range(3):
            await pilot.press("s")
        await pilot.pause()
        assert "by reward ▼" in screen_text(pilot) and table(pilot)[0][1] == "1.200"


@pytest.mark.broad
async def test_a_rollout_is_shown_and_a_key_opens_the_next_one(folder: Path):
    async with open_viewer(folder) as pilot:
        await open_run(pilot, "worse")
        await enter_text(pilot, "slash", "win=1")
        await pilot.press("enter")
        await pilot.pause()
        screen = screen_text(pilot)
        assert isinstance(pilot.app.screen, Rollout)
        assert "Example 0, rollout 1" in screen and "After 1 turn: answered." in screen
        assert "reward 1.200 = win 1.000 × 1.000 + format 1.000 × 0.200" in screen
        assert "question 0" in screen and "answer 1" in screen and "Tag" not in screen
        await pilot.press("j")
        await pilot.pause()
        assert "Example 1, rollout 1" in screen_text(pilot)
        await pilot.press("j", "j", "j")
        await pilot.pause()
        assert "Example 2, rollout 1" in screen_text(pilot) and "this is the last rollout" in screen_text(pilot)
        await pilot.press("k", "escape")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Rollouts)


@pytest.mark.broad
async def test_failures_are_shown(folder: Path):
    async with open_viewer(folder) as pilot:
        await open_run(pilot, "worse")
        await enter_text(pilot, "slash", "error='model: InfraError'")
        await pilot.press("enter")
        await pilot.pause()
        assert "Failed after 0 turns." in screen_text(pilot) and "InfraError: no answer" in screen_text(pilot)


async def test_two_runs_are_compared(folder: Path):
    async with open_viewer(folder) as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert "select two runs" in screen_text(pilot)
        for name in ("worse", "better"):
            found = pilot.app.screen.query_one(DataTable)
            found.move_cursor(row=found.get_row_index(name))
            await pilot.press("space")
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Comparison)
        assert table(pilot)[0][:4] == ["reward", "0.700", "1.200", "+0.500"]
        assert "better" in screen_text(pilot)


async def test_new_data_of_a_run_appears_automatically(folder: Path):
    async with open_viewer(folder) as pilot:
        await open_run(pilot, "rl")
        assert "step 1: reward/mean 0.700" in screen_text(pilot) and "alert: [red]\\x1b[31m" in screen_text(pilot)
        found = pilot.app.screen.query_one(DataTable)
        found.move_cursor(row=1)
        with made_run(folder / "rl", [record(1, 0, 1.0, step=2)], kind="rl", steps=9) as run:
            run.append_metrics({"step": 2, "reward/mean": 0.9})
        screen = pilot.app.screen
        assert isinstance(screen, Rollouts)
        screen.refresh_page()
        await pilot.pause()
        assert len(table(pilot)) == 3 and "step 2: reward/mean 0.900" in screen_text(pilot)
        assert found.cursor_row == 1  # the cursor stays where it was
        (folder / "rl/config.toml").unlink()
        screen.refresh_page()
        await pilot.pause()
        assert "no run 'rl' here" in screen_text(pilot)


@pytest.mark.broad
async def test_tags_and_notes_are_stored_if_annotation_is_allowed(folder: Path):
    for annotate in (False, True):
        async with open_viewer(folder, annotate) as pilot:
            await open_run(pilot, "worse")
            await pilot.press("enter")
            await pilot.pause()
            await pilot.press("t")
            await pilot.pause()
            assert pilot.app.screen.query_one(Input).has_class("prompting") == annotate
            if not annotate:
                continue
            pilot.app.screen.query_one(Input).value = "good"
            await pilot.press("enter")
            await pilot.pause()
            await enter_text(pilot, "n", "look here")
            assert "good  look here" in screen_text(pilot)
            await enter_text(pilot, "t", "bad\x1b")
            assert "a tag is 'bad\\x1b'" in screen_text(pilot)
            await pilot.press("escape")
            await pilot.pause()
            await enter_text(pilot, "slash", "tag=good noted=1")
            assert [row[6] for row in table(pilot)] == ["good ✎"]
            await pilot.press("enter")
            await pilot.pause()
            await enter_text(pilot, "t", "good")
    assert Annotations(folder / "worse").rollouts[(None, "key0", 0)] == ((), "look here")


@pytest.mark.broad
async def test_hostile_text_of_a_run_is_displayed_without_effect(tmp_path: Path):
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    completion: list[Any] = [
        {"role": EVIL, "content": EVIL, "tool_calls": [call, EVIL], "reasoning_content": EVIL},
        {"role": "assistant", "content": f"<think>{EVIL}</think>{EVIL}" + "x" * 5_000_000},
    ]
    evil = record(0, 0, completion=completion, stop_condition=EVIL, scores=scores(1.0, **{EVIL: 1.0}))
    made_run(tmp_path / "runs/evil", [evil, record(0, 1)], env=EVIL, model=EVIL)
    async with open_viewer(tmp_path / "runs", annotate=True) as pilot:
        await enter_text(pilot, "slash", "evil")
        for _ in range(3):
            assert not any(char in screen_text(pilot) for char in "\x1b\x07\u202e")
            await pilot.press("enter")
            await pilot.pause()
        assert isinstance(pilot.app.screen, Rollout)
        texts = [str(one.render()) for one in pilot.app.screen.query(Static)]
        assert sum("[red]\\x1b[31m" in text for text in texts) >= 3 and not any("\x1b" in text for text in texts)


@given(st.text())
def test_inert_text_is_printable(text: str):
    escaped = inert(text)
    joiners = "\n\u200c\u200d"  # Persian, Hindi and emoji need the joiners
    assert all(char in joiners or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in escaped)
    assert Text(escaped).plain == escaped


conditions = st.tuples(
    st.sampled_from(["is.stop", "from.reward", "to.score.win", "is.tag", "is.error"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="'\"\\#"), max_size=6)
    | st.just("two words"),
)


@given(st.lists(conditions, max_size=4))
def test_a_filter_is_parsed_from_its_text(pairs: list[tuple[str, str]]):
    original = Filter(tuple(pairs))
    assert Filter.read(str(original), ["stop", "reward", "score.win", "error"]) == original
    assert original.toggled(("is.stop", "new")).toggled(("is.stop", "new")) == original


@pytest.mark.parametrize("text", ["reward", "=3", "'", "nothing=1", ">=1"])
def test_invalid_filters_are_refused(text: str):
    with pytest.raises(ConfigError):
        Filter.read(text, ["reward"])


def test_a_missing_textual_error_shows_the_install_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rove = in_this_process(folder.parent, monkeypatch, capsys)
    for name in [name for name in sys.modules if name.startswith(("textual", "rove.cli.terminal"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    done = rove("view", "--terminal")
    assert (done.status, done.err) == (
        2,
        "error: --terminal needs the library textual: pip install 'rove[terminal]'\n",
    )


@pytest.mark.broad
def test_the_browser_viewer_does_not_import_textual():
    code = "import sys, rove.cli.main, rove.cli.view, rove.viewer.app; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
