"""Reports: everything is there, nothing is believed, nothing comes from elsewhere."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made_run, record, scores

import rove as vf
from rove.records import ErrorInfo, TrajectoryStep
from rove.runs import Run
from rove.statistics import Tally
from rove.viewer.chat import MESSAGE_LIMIT, ROLLOUT_LIMIT, rollout_html
from rove.viewer.html import BINS, cut, excerpt, histogram, shown
from rove.viewer.report import choose, markdown, write_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)'"
VOID = {"meta", "rect", "img", "br"}


class Page(HTMLParser):
    """A page taken apart; fails on one whose elements do not close in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.rollouts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if ("class", "rollout") in attrs:
            self.rollouts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)
            if self.rollouts:
                self.rollouts[-1] += data + " "

    @property
    def words(self) -> str:
        return " ".join(self.text)


def page(run: Run, tmp_path: Path, **options: Any) -> Page:
    return Page(write_report(run, tmp_path / "out.html", **options).read_text(encoding="utf-8"))


def finish(run: Run, records: list[vf.RolloutRecord], **more: Any) -> Run:
    tally = Tally()
    for one in records:
        tally.add(one)
    run.finish({**tally.summary(), **more})
    return run


FEW = [record(0, 0, 1.0), record(0, 1, 0.0), record(1, 0, None), record(1, 1, 0.5)]


def test_everything_is_on_the_page(tmp_path: Path):
    run = finish(
        made_run(tmp_path / "run", FEW, num_examples=2, sampling={"top_p": 0.9}),
        FEW,
        cost={"total": 1.5, "per_rollout": 0.5},
    )
    seen = page(run, tmp_path)
    assert "quiz · someone/model" in seen.words
    for there in (
        "3 / 4",
        "win",
        "format",
        "length",
        "metric",
        "pass@1",
        "model: InfraError (1)",
        "answered (3)",
        "cost",
        "1.500",
    ):
        assert there in seen.words, there
    assert "top_p = 0.9" in seen.words
    assert "msgspec" in seen.words
    assert "unfinished" not in seen.words
    assert f"rove eval @ {run.path}/config.toml" in seen.words
    assert sum(tag == "figure" for tag, _ in seen.tags) == 5  # reward, format, length, win, turns
    assert re.search(r"1 · key1\s+question 1\s+2\s+0.700\s+–\s+1", " ".join(seen.words.split()))


def test_failures_come_first_then_the_lowest_rewards(tmp_path: Path):
    seen = page(made_run(tmp_path / "run", FEW), tmp_path)
    assert [title.split()[0] for title in seen.rollouts] == ["failed", "0.200", "0.700", "1.200"]
    assert "HTTP 502" in seen.rollouts[0]
    assert "Traceback: line 1" in seen.rollouts[0]
    assert "the model said nothing" in seen.rollouts[0]


def test_nothing_a_rollout_says_becomes_html(tmp_path: Path):
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    said = [
        {
            "role": "assistant",
            "content": f"<think>{EVIL}</think>{EVIL}",
            "tool_calls": [call, EVIL],
            "reasoning_content": EVIL,
        },
        {"role": EVIL, "content": [{"type": "text", "text": EVIL}, {"type": EVIL}, EVIL], "name": EVIL},
        {"role": "tool", "content": EVIL, "tool_call_id": EVIL, "refusal": EVIL},
    ]
    error = ErrorInfo(EVIL, EVIL, EVIL, EVIL, [EVIL])
    common: dict[str, Any] = {"example_key": EVIL, "answer": EVIL, "info": {EVIL: EVIL}, "stop_condition": EVIL}
    evil = [
        record(0, 0, prompt=[{"role": "user", "content": EVIL}], completion=said, **common),
        record(0, 1, scores=vf.Scores(1.0, {EVIL: 1.0}, {EVIL: 1.0}, {EVIL + "2": 0.0}, {EVIL: [EVIL]}), **common),
        record(0, 2, None, **{**common, "error": error}),
    ]
    run = made_run(tmp_path / "run", evil, env=EVIL, model=EVIL, env_args={"text": EVIL})
    finish(run, evil, errors={EVIL: 1}, too_few=EVIL)
    seen = page(run, tmp_path)
    assert [tag for tag, _ in seen.tags].count("script") == 1
    assert {name for _, attrs in seen.tags for name in attrs} <= {
        *("lang", "charset", "name", "content", "http-equiv", "class", "id", "href"),
        *("viewbox", "role", "aria-label", "x", "y", "width", "height"),
    }
    assert "img" not in {tag for tag, _ in seen.tags}
    assert seen.words.count("alert(1)") > 20
    assert "<script>" not in markdown(run).replace(r"\<script", "")


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path):
    seen = page(made_run(tmp_path / "run", FEW), tmp_path)
    assert all(not (attrs.keys() & {"src", "srcset", "data"}) for _, attrs in seen.tags)
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in seen.tags)
    assert not {"link", "iframe", "object"} & {tag for tag, _ in seen.tags}
    [policy] = [attrs["content"] for _, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    links = {attrs["href"] for tag, attrs in seen.tags if tag == "a"}
    assert links == {f"#{attrs['id']}" for _, attrs in seen.tags if attrs.get("id") in ("rollout-0", "rollout-2")}


def test_a_run_that_was_never_finished(tmp_path: Path):
    price = {"input": 1e5, "output": 0.0}
    run = made_run(tmp_path / "run", FEW, num_examples=3, rollouts_per_example=2, pass_threshold=0.6, price=price)
    seen = page(run, tmp_path)
    assert "unfinished, 6 were planned" in seen.words
    assert "3 / 4" in seen.words
    assert "cost, 1.000 per rollout" in seen.words
    assert "| pass@1 | 0.750 |" in markdown(run)


@pytest.mark.parametrize("records", [[], [record(0, 0, None), record(1, 0, None)]], ids=["empty", "all failed"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_run_without_a_single_score(tmp_path: Path, records: list[vf.RolloutRecord], finished: bool):
    run = made_run(tmp_path / "run", records)
    if finished:
        finish(run, records)
    seen = page(run, tmp_path)
    assert "No rollout has been scored." in seen.words
    assert f"0 / {len(records)}" in seen.words
    assert len(seen.rollouts) == len(records)
    assert "| reward | – | – |" in markdown(run)


def test_a_summary_of_an_older_version_or_with_nulls(tmp_path: Path):
    run = made_run(tmp_path / "run", FEW)
    run.finish(
        {"rollouts": 4, "scored": 3, "reward": {"mean": None, "half_width": None}, "latency": None, "cost": None}
    )
    assert "– ± –" in page(run, tmp_path).words
    run.finish({"rollouts": 4})
    assert "– ± –" in page(run, tmp_path).words


def test_only_the_last_word_on_a_rollout_counts(tmp_path: Path):
    again = [record(0, 0, None), record(0, 0, 1.0), record(0, 1, 1.0), record(0, 1, None)]
    seen = page(made_run(tmp_path / "run", again), tmp_path)
    assert "1 / 2" in seen.words
    assert len(seen.rollouts) == 2


def test_only_so_many_rollouts_are_shown_and_the_page_says_so(tmp_path: Path):
    many = [record(i, j, i / 10 if i else None) for i in range(10) for j in range(4)]
    seen = page(made_run(tmp_path / "run", many), tmp_path, rollouts=10)
    rewards = [title.split()[0] for title in seen.rollouts]
    assert rewards == ["failed"] * 4 + ["0.300"] * 3 + ["1.100"] * 3
    assert "30 of 40 are left out" in seen.words
    assert page(made_run(tmp_path / "run2", many), tmp_path, rollouts=0).rollouts == []


@given(st.lists(st.none() | st.floats(-1, 1), max_size=40), st.integers(0, 50))
def test_as_many_as_asked_for_are_chosen_and_none_twice(rewards: list[float | None], limit: int):
    places = [(7 * i, reward) for i, reward in enumerate(rewards)]
    chosen = choose(places, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, len(rewards))
    of = dict(places)
    failed = [place for place in chosen if of[place] is None]
    assert chosen[: len(failed)] == failed
    scored = [of[place] for place in chosen[len(failed) :]]
    if len(rewards) > limit and None not in rewards and limit:
        lowest = sorted(r for r in rewards if r is not None)
        assert sorted(r for r in scored if r is not None) == sorted(
            lowest[: limit - limit // 2] + lowest[len(lowest) - limit // 2 :]
        )


def test_other_runs_have_no_report(tmp_path: Path):
    with pytest.raises(vf.RunError, match="is a run of 'rove rl'; a report is made of one of 'rove eval'"):
        write_report(made_run(tmp_path / "run", FEW, kind="rl"), tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_a_line_that_is_no_rollout_leaves_no_page(tmp_path: Path):
    run = made_run(tmp_path / "run", FEW)
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(vf.RunError, match="not a rollout record"):
        write_report(run, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_a_function_named_reward_is_not_taken_for_the_reward(tmp_path: Path):
    named = [record(scores=vf.Scores(0.5, {"reward": 1.0}, {"reward": 0.5}))]
    seen = page(made_run(tmp_path / "run", named), tmp_path)
    assert "mean 0.500" in seen.words
    assert "reward (function)" in seen.words


def test_a_password_in_an_address_stays_in_the_run_folder(tmp_path: Path):
    write_report(made_run(tmp_path / "run", FEW, base_url="http://me:secret@host/v1"), tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "secret" not in text
    assert "http://…@host/v1" in text


# A rollout as a chat


def test_reasoning_and_tool_calls_are_folded():
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}
    said = [
        {
            "role": "assistant",
            "content": "<think>inside</think>\nout",
            "tool_calls": [call],
            "reasoning_content": "beside",
        },
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    ]
    shows = rollout_html(record(completion=said, is_truncated=True), "here")
    assert re.findall(r'<details class="(\w+)"', shows) == ["rollout", "thought", "thought", "call"]
    assert "<pre>out</pre>" in shows
    assert "&quot;x&quot;: 1" in shows
    assert "truncated" in shows
    assert 'class="message tool"' in shows


def test_what_others_said_is_folded():
    step = TrajectoryStep([], [{"role": "assistant", "content": "<b>ten</b>, no less"}])
    judged = {"judge": [[{"judge": "strict", "said": "yes & no", "shared": False}]]}
    one = record(scores=vf.Scores(1.0, {}, {}, {}, judged), seats={"seller": [step], "judge": [step]})
    shows = rollout_html(one, "r")
    assert "yes &amp; no" in shows and "<summary>judge</summary>" in shows
    assert "&lt;b&gt;ten&lt;/b&gt;, no less" in shows and "<summary>seat seller</summary>" in shows
    assert "seat judge" not in shows  # the scores tell


def test_a_long_rollout_is_cut_and_says_so():
    long = [{"role": "assistant", "content": "x" * 50_000}]
    shows = rollout_html(record(completion=long), "here")
    assert f"{50_000 - MESSAGE_LIMIT:,} characters left out" in shows
    assert len(rollout_html(record(completion=long * 300), "here")) < 2 * ROLLOUT_LIMIT
    thought = [{"role": "assistant", "content": f"<think>{'x' * 50_000}</think>done"}]
    assert len(rollout_html(record(completion=thought), "here")) < 2 * MESSAGE_LIMIT


def test_what_is_no_text_is_named():
    parts = [{"type": "text", "text": "look:"}, {"type": "image_url", "image_url": {"url": "http://elsewhere/x.png"}}]
    shows = rollout_html(record(prompt=[{"role": "user", "content": parts}]), "here")
    assert "[image_url, not shown]" in shows
    assert "elsewhere" not in shows


# Pieces


@given(st.text(max_size=300), st.integers(1, 100))
def test_a_cut_text_keeps_its_ends(value: str, limit: int):
    short = cut(value, limit)
    if len(value) <= limit:
        assert short == value
    else:
        assert f"… {len(value) - limit:,} characters left out …" in short
        assert short[: limit * 2 // 3] == value[: limit * 2 // 3]
    assert len(excerpt(value, limit)) <= limit
    assert "\n" not in excerpt(value, limit)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=100))
def test_a_histogram_counts_every_value(values: list[float]):
    drawn = histogram("name", values)
    counts = [int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)</title>", drawn)]
    assert sum(counts) == len(values)
    assert len(counts) <= BINS


def test_a_histogram_of_nothing_is_nothing():
    assert histogram("name", []) == histogram("name", [math.nan]) == ""


def test_numbers_for_people():
    assert [shown(None), shown(math.nan), shown(1234567), shown(0.5)] == ["–", "–", "1,234,567", "0.500"]


# Markdown


def test_markdown_for_a_pull_request(tmp_path: Path):
    run = finish(made_run(tmp_path / "run", FEW), FEW)
    text = markdown(run)
    assert text.startswith(
        "### quiz · someone/model\n\n| value | mean | ± 95 % | weight |\n| --- | ---: | ---: | ---: |\n"
    )
    assert "\n| win | 0.500 |" in text
    assert "\n3 of 4 rollouts scored; 1 failed: model: InfraError (1); ended by answered (3)\n" in text
    assert f"`rove eval @ {run.path}/config.toml --run-dir runs/again`" in text


def test_a_measurement_of_training_is_repeated_with_a_model_of_ones_own(tmp_path: Path):
    run = made_run(tmp_path / "run", FEW)
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace('model = "someone/model"', 'model = ""'))
    text = markdown(run)
    assert text.startswith("### quiz · a model in training\n")
    assert f"`rove eval @ {run.path}/config.toml -m FOLDER --run-dir runs/again`" in text


def test_a_name_cannot_break_the_table(tmp_path: Path):
    odd = [record(scores=vf.Scores(1.0, {"a|b": 1.0}, {"a|b": 1.0}))]
    assert r"| a\|b | 1.000 |" in markdown(made_run(tmp_path / "run", odd))


def test_scores_of_records_made_here_are_what_a_rubric_gives():
    assert scores(1.0).reward == sum(scores(1.0).weights[name] * value for name, value in scores(1.0).rewards.items())
