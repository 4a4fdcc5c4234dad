"""Reports: everything is there, nothing is believed, nothing comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made_run, record, scores

import rove as vf
from rove.core.records import ErrorInfo
from rove.runs.run import Run
from rove.statistics import Tally
from rove.viewer.html import bundled, cut, excerpt, shown
from rove.viewer.report import MAX_ROLLOUT_CHARS, MAX_TEXT_CHARS, choose_rollouts, markdown, training_data, write_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)'"
VOID = {"meta"}


class Page(HTMLParser):
    """A page taken apart, and the data that it shows; fails on one whose elements do not close in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inside: list[str] = []
        """Contents of style and scripts."""
        self.text = ""
        """What is seen without scripts."""
        self.feed(text)
        self.close()
        assert not self.open
        self.style, raw, self.script = self.inside
        assert "<" not in raw
        self.data = msgspec.json.decode(raw)
        self.words = " ".join(texts(self.data))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("style", "script"):
            self.inside.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.inside[-1] += data
        else:
            self.text += data

    @property
    def rewards(self) -> list[float | None]:
        return [one["reward"] and round(one["reward"], 6) for one in self.data["rollouts"]]


def texts(value: Any) -> Iterator[str]:
    """Every text and number in a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    else:
        yield str(value)


def page(run: Run, tmp_path: Path, **options: Any) -> Page:
    return Page(write_report(run, tmp_path / "out.html", **options).read_text(encoding="utf-8"))


def finish(run: Run, records: list[vf.RolloutRecord], **more: Any) -> Run:
    tally = Tally()
    for one in records:
        tally.add(one)
    run.finish({**tally.summary(), **more})
    return run


MAX_CODED_VALUES = [record(0, 0, 1.0), record(0, 1, 0.0), record(1, 0, None), record(1, 1, 0.5)]


def test_everything_is_on_the_page(tmp_path: Path):
    run = finish(
        made_run(tmp_path / "run", MAX_CODED_VALUES, num_examples=2, sampling={"top_p": 0.9}),
        MAX_CODED_VALUES,
        cost={"total": 1.5, "per_rollout": 0.5},
    )
    seen = page(run, tmp_path)
    assert seen.data["title"] == "quiz · someone/model"
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
    assert "unfinished" not in seen.words and seen.data["complete"]
    assert f"rove eval @ {run.path}/config.toml" in seen.words
    assert [one["title"] for one in seen.data["histograms"]] == ["reward", "format", "length", "win", "turns"]
    assert seen.data["histograms"][0]["mean"] == pytest.approx(0.7)
    [odd] = [one for one in seen.data["examples"] if one["failed"]]
    assert odd == {
        **{"number": 1, "key": "key1", "question": "question 1", "rollouts": 2, "mean": 0.7, "spread": None},
        **{"failed": 1, "line": 2},
    }
    assert seen.data["examples"][0]["spread"] == pytest.approx(2**-0.5)
    assert "| reward | 0.700 |" in seen.text  # there is something to read without scripts


def test_failures_come_first_then_the_lowest_rewards(tmp_path: Path):
    seen = page(made_run(tmp_path / "run", MAX_CODED_VALUES), tmp_path)
    assert seen.rewards == [None, 0.2, 0.7, 1.2]
    first = " ".join(texts(seen.data["rollouts"][0]))
    assert "HTTP 502" in first and "Traceback: line 1" in first


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
    assert [tag for tag, _ in seen.tags] == [
        *("html", "head", "meta", "meta", "meta", "title", "style", "body"),
        *("main", "noscript", "p", "pre", "p", "script", "script"),
    ]
    assert seen.words.count("alert(1)") > 20
    assert "<script>" not in markdown(run).replace(r"\<script", "")


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path):
    seen = page(made_run(tmp_path / "run", MAX_CODED_VALUES), tmp_path)
    assert all(not (attrs.keys() & {"src", "srcset", "data", "href"}) for _, attrs in seen.tags)
    assert set(re.findall(r"https?://[\w.]+", seen.script + seen.style)) == {
        "http://www.w3.org",  # names of SVG and MathML
        "https://github.com",  # the origin of libraries
    }
    [policy] = [attrs["content"] for _, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, content in {"script-src": seen.script, "style-src": seen.style}.items():
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_a_run_that_was_never_finished(tmp_path: Path):
    price = {"input": 1e5, "output": 0.0}
    run = made_run(
        tmp_path / "run", MAX_CODED_VALUES, num_examples=3, rollouts_per_example=2, pass_threshold=0.6, price=price
    )
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
    assert f"0 / {len(records)}" in seen.words
    assert len(seen.rewards) == len(records) and seen.data["histograms"] == []
    assert re.search(r"\| reward \| – \| –(\\\*)? \|", markdown(run))


def test_a_summary_of_an_older_version_or_with_nulls(tmp_path: Path):
    run = made_run(tmp_path / "run", MAX_CODED_VALUES)
    run.finish(
        {"rollouts": 4, "scored": 3, "reward": {"mean": None, "half_width": None}, "latency": None, "cost": None}
    )
    assert "– – reward, 95 % interval" in page(run, tmp_path).words
    run.finish({"rollouts": 4, "reward": {"mean": 0.5, "half_width": 0.25}})
    assert "0.500 [0.250, 0.750] reward" in page(run, tmp_path).words
    assert "| reward | 0.500 | \\[0.250, 0.750\\] |" in markdown(run)
    run.finish({"rollouts": 4, "reward": {"mean": 0.5, "low": 0.1, "high": 0.6, "caveat": "why"}})
    assert "0.500 [0.100, 0.600]* reward" in page(run, tmp_path).words
    assert "\\* why" in markdown(run)
    run.finish({"rollouts": 4})
    assert "– – reward, 95 % interval" in page(run, tmp_path).words


def test_only_the_last_word_on_a_rollout_counts(tmp_path: Path):
    again = [record(0, 0, None), record(0, 0, 1.0), record(0, 1, 1.0), record(0, 1, None)]
    seen = page(made_run(tmp_path / "run", again), tmp_path)
    assert "1 / 2" in seen.words
    assert len(seen.rewards) == 2


def test_only_so_many_rollouts_are_shown_and_the_page_says_so(tmp_path: Path):
    many = [record(i, j, i / 10 if i else None) for i in range(10) for j in range(4)]
    seen = page(made_run(tmp_path / "run", many), tmp_path, rollouts=10)
    assert seen.rewards == [None] * 4 + [0.3] * 3 + [1.1] * 3
    assert "30 of 40 are omitted" in seen.words
    assert page(made_run(tmp_path / "run2", many), tmp_path, rollouts=0).rewards == []


@given(st.lists(st.none() | st.floats(-1, 1), max_size=40), st.integers(0, 50))
def test_as_many_as_asked_for_are_chosen_and_none_twice(rewards: list[float | None], limit: int):
    places = [(7 * i, reward) for i, reward in enumerate(rewards)]
    chosen = choose_rollouts(places, limit)
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


def test_a_line_that_is_no_rollout_leaves_no_page(tmp_path: Path):
    run = made_run(tmp_path / "run", MAX_CODED_VALUES)
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(vf.RunError, match="not a rollout record"):
        write_report(run, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_a_function_named_reward_is_not_taken_for_the_reward(tmp_path: Path):
    named = [record(scores=vf.Scores(0.5, {"reward": 1.0}, {"reward": 0.5}))]
    seen = page(made_run(tmp_path / "run", named), tmp_path)
    titles = {one["title"]: one["mean"] for one in seen.data["histograms"]}
    assert (titles["reward"], titles["reward (function)"]) == (0.5, 1.0)


def test_a_password_in_an_address_stays_in_the_run_folder(tmp_path: Path):
    write_report(
        made_run(tmp_path / "run", MAX_CODED_VALUES, base_url="http://me:secret@host/v1"), tmp_path / "out.html"
    )
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "secret" not in text
    assert "http://…@host/v1" in text


def test_a_long_rollout_is_cut_and_says_so(tmp_path: Path):
    long = [{"role": "assistant", "content": "x" * 50_000}]
    records = [record(0, 0, completion=long), record(1, 0, completion=long * 300)]
    seen = page(made_run(tmp_path / "run", records), tmp_path)
    one, many = seen.data["rollouts"]
    assert f"{50_000 - MAX_TEXT_CHARS:,} characters left out" in one["completion"][0]["content"]
    assert len("".join(texts(many))) < 2 * MAX_ROLLOUT_CHARS


# Training


def trained(path: Path, kind: str = "rl", steps: int = 3) -> Run:
    with made_run(path, [], kind=kind, steps=5, data="runs/teacher") as run:
        for step in range(1, steps + 1):
            for i in range(4):
                run.append_rollout(record(i // 2, i % 2, None if (step, i) == (3, 3) else i / step, step=step))
            held_out = {"eval/optimal/reward/mean": 0.2 * step, "eval/optimal/reward/half_width": 0.01}
            run.append_metrics({"step": step, "reward/mean": 1 / step, "time/step": 40.0, "x": math.pi, **held_out})
        run.append_alert({"step": 2, "name": "x", "text": EVIL})
    return run


def test_a_training_run_is_its_curves_alerts_measurements_and_last_rollouts(tmp_path: Path):
    seen = page(trained(tmp_path / "run"), tmp_path)
    assert seen.data["title"] == "RL · quiz · someone/model" and not seen.data["complete"]
    drawn = seen.data["training"]
    assert [row["step"] for row in drawn["rows"]] == [1, 2, 3] and drawn["rows"][0]["x"] == 3.14159
    assert drawn["alerts"] == [{"step": 2, "name": "x", "text": EVIL}]
    assert [step["failed"] for step in drawn["steps"]] == [0, 0, 1] and drawn["groups"]["groups"] == 5
    assert seen.data["values"] == [
        ["reward", "1.000", "0.333", "1.000", "1"],
        ["optimal (held out)", "0.200", "0.600", "0.600", "3"],
    ]
    assert seen.data["cards"][0] == ["3 of 5", "steps"] and "2 minutes in all" in seen.data["counts"]
    assert seen.rewards == [None, 0.2, 0.533333, 0.866667]
    assert {one["step"] for one in seen.data["rollouts"]} == {3} and "Rollouts of the last step." in seen.data[
        "rollouts_note"
    ]
    assert seen.data["again"] == f"rove rl @ {tmp_path}/run/config.toml --run-dir runs/again"
    text = markdown(Run(tmp_path / "run"))
    assert "| measured | first | last | best | at step |" in text and "3 of 5 steps taken" in text
    assert "<script>" not in text.replace(r"\<script", "")


def test_sft_without_rollouts_and_a_run_of_which_nothing_is_known_yet(tmp_path: Path):
    with made_run(tmp_path / "sft", [], kind="sft", env="", data=["runs/a", "runs/b"]) as run:
        for step in (1, 2, 3):
            run.append_metrics({"step": step, "loss": abs(step - 2) + 0.5, "optim/lr": math.nan})
        run.finish({})
    seen = page(run, tmp_path)
    assert seen.data["complete"] and seen.rewards == [] and seen.data["rollouts_note"] == ""
    assert seen.data["values"] == [["loss", "1.500", "1.500", "0.500", "2"]]
    assert not (run.path / "index.sqlite").exists()
    for kind in ("rl", "sft", "eval"):
        seen = page(made_run(tmp_path / f"new-{kind}", [], kind=kind), tmp_path)
        assert seen.rewards == [] and not seen.data["complete"]


metrics = st.dictionaries(
    st.sampled_from(["step", "reward/mean", "loss", "eval/a/reward/mean", "eval/" + EVIL + "/reward/mean"]),
    st.none() | st.floats() | st.integers(-9, 9) | st.text(max_size=3),
)


@given(st.lists(metrics.map(lambda row: {**row, "step": 1}), max_size=5))
def test_no_metrics_make_it_fail(rows: list[dict[str, Any]]):
    told = training_data(rows, [{"text": "of no step"}, {}])
    assert all(len(row) == len(told["head"]) for row in told["values"])


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


def test_modules_become_one_script_each_of_them_once_and_before_those_that_need_it():
    files = {
        "a": 'import { b, c } from "./b.js";\nimport { c as d } from "./c.js";\nb();\n',
        "b": 'import { c } from "./c.js";\nexport function b() {}\nexport async function* x() {}\n',
        "c": "export const c = 1;\nconst hidden = 2;\n",
    }
    files["a"] = files["a"].replace("c as d", "c")
    script = bundled("a", files)
    assert re.findall(r"^const \$(\w) =", script, re.MULTILINE) == ["c", "b", "a"]
    assert "return { b, x };" in script and "return { c };" in script and "const { c } = $c;" in script
    assert "import" not in script and "export" not in script
    with pytest.raises(AssertionError, match=r"a\.js is of another form"):
        bundled("a", {"a": 'import "./b.js";\n'})


def test_numbers_for_people():
    assert [shown(None), shown(math.nan), shown(1234567), shown(0.5)] == ["–", "–", "1,234,567", "0.500"]


# Markdown


def test_markdown_for_a_pull_request(tmp_path: Path):
    run = finish(made_run(tmp_path / "run", MAX_CODED_VALUES), MAX_CODED_VALUES)
    text = markdown(run)
    assert text.startswith(
        "### quiz · someone/model\n\n| value | mean | 95 % interval | weight |\n| --- | ---: | ---: | ---: |\n"
    )
    assert "\n| win | 0.500 |" in text
    assert (
        "\n3 of 4 rollouts scored; 1 failed: model: InfraError (1); stop reason: answered (3); \\* interval may" in text
    )
    assert f"`rove eval @ {run.path}/config.toml --run-dir runs/again`" in text


def test_a_measurement_of_training_is_repeated_with_a_model_of_ones_own(tmp_path: Path):
    run = made_run(tmp_path / "run", MAX_CODED_VALUES)
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
