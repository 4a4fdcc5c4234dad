"""Test reports: content, hostile input and independence of external resources."""

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
from run_folders import make_record, make_scores, write_run_folder

import rove as vf
from rove.core.records import ErrorInfo
from rove.runs.run import Run
from rove.statistics import Tally
from rove.statistics.format import cut, excerpt, shown
from rove.viewer.html import bundled
from rove.viewer.report import (
    MAX_ROLLOUT_CHARS,
    MAX_TEXT_CHARS,
    choose_rollouts,
    markdown,
    summary_data,
    training_data,
    write_report,
)

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)'"
VOID_TAGS = {"meta"}


class Page(HTMLParser):
    """Parse a page and its data; fail if elements are not closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inside: list[str] = []
        """Contents of the style and script elements."""
        self.text = ""
        """Text that is visible without scripts."""
        self.feed(text)
        self.close()
        assert not self.open
        self.style, raw, self.script = self.inside
        assert "<" not in raw
        self.data = msgspec.json.decode(raw)
        self.words = " ".join(texts(self.data))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)
        if tag in ("style", "script"):
            self.inside.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.inside[-1] += data
        else:
            self.text += data

    @property
    def rewards(self) -> list[float | None]:
        return [rollout["reward"] and round(rollout["reward"], 6) for rollout in self.data["rollouts"]]


def texts(value: Any) -> Iterator[str]:
    """Yield every text and number in a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    else:
        yield str(value)


def write_and_parse(run: Run, tmp_path: Path, **options: Any) -> Page:
    return Page(write_report(run, tmp_path / "out.html", **options).read_text(encoding="utf-8"))


def finish_run(run: Run, records: list[vf.RolloutRecord], **fields: Any) -> Run:
    tally = Tally()
    for rollout in records:
        tally.add(rollout)
    run.finish({**tally.result().to_dict(), **fields})
    return run


RECORDS = [make_record(0, 0, 1.0), make_record(0, 1, 0.0), make_record(1, 0, None), make_record(1, 1, 0.5)]


def test_the_report_of_an_evaluation_shows_its_results_and_settings(tmp_path: Path):
    run = finish_run(
        write_run_folder(tmp_path / "run", RECORDS, num_examples=2, sampling={"top_p": 0.9}),
        RECORDS,
        cost={"total": 0.0015, "per_rollout": 0.0005},
    )
    page = write_and_parse(run, tmp_path)
    assert page.data["title"] == "quiz · someone/model"
    for expected in (
        "3 / 4",
        "win",
        "format",
        "length",
        "metric",
        "pass@1",
        "model: InfraError (1)",
        "answered (3)",
        "0.0015",
        "cost, 0.0005 per rollout",
    ):
        assert expected in page.words, expected
    assert "top_p = 0.9" in page.words
    assert "msgspec" in page.words
    assert "unfinished" not in page.words and page.data["complete"]
    assert f"rove eval @ {run.path}/config.toml" in page.words
    assert [entry["title"] for entry in page.data["histograms"]] == ["reward", "format", "length", "win", "turns"]
    assert page.data["histograms"][0]["mean"] == pytest.approx(0.7)
    [failed_example] = [entry for entry in page.data["examples"] if entry["failed"]]
    assert failed_example == {
        **{"number": 1, "key": "key1", "question": "question 1", "rollouts": 2, "mean": 0.7, "spread": None},
        **{"failed": 1, "line": 2},
    }
    assert page.data["examples"][0]["spread"] == pytest.approx(2**-0.5)
    assert "| reward | 0.700 |" in page.text  # the page is readable without scripts


def test_failed_rollouts_come_first_then_the_lowest_rewards(tmp_path: Path):
    page = write_and_parse(write_run_folder(tmp_path / "run", RECORDS), tmp_path)
    assert page.rewards == [None, 0.2, 0.7, 1.2]
    first = " ".join(texts(page.data["rollouts"][0]))
    assert "HTTP 502" in first and "Traceback: line 1" in first


def test_hostile_content_does_not_become_html(tmp_path: Path):
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    completion = [
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
    hostile = [
        make_record(0, 0, prompt=[{"role": "user", "content": EVIL}], completion=completion, **common),
        make_record(0, 1, scores=vf.Scores(1.0, {EVIL: 1.0}, {EVIL: 1.0}, {EVIL + "2": 0.0}, {EVIL: [EVIL]}), **common),
        make_record(0, 2, None, **{**common, "error": error}),
    ]
    run = write_run_folder(tmp_path / "run", hostile, env=EVIL, model=EVIL, env_args={"text": EVIL})
    finish_run(run, hostile, errors={EVIL: 1}, too_few=EVIL)
    page = write_and_parse(run, tmp_path)
    assert [tag for tag, _ in page.tags] == [
        *("html", "head", "meta", "meta", "meta", "title", "style", "body"),
        *("main", "noscript", "p", "pre", "p", "script", "script"),
    ]
    assert page.words.count("alert(1)") > 20
    assert "<script>" not in markdown(run).replace(r"\<script", "")


def test_the_page_needs_no_external_resources(tmp_path: Path):
    page = write_and_parse(write_run_folder(tmp_path / "run", RECORDS), tmp_path)
    assert all(not (attrs.keys() & {"src", "srcset", "data", "href"}) for _, attrs in page.tags)
    assert set(re.findall(r"https?://[\w.]+", page.script + page.style)) == {
        "http://www.w3.org",  # names of SVG and MathML
        "https://github.com",  # where the libraries come from
    }
    [policy] = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, content in {"script-src": page.script, "style-src": page.style}.items():
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_an_unfinished_run_is_reported_as_unfinished(tmp_path: Path):
    price = {"input": 1e5, "output": 0.0}
    run = write_run_folder(
        tmp_path / "run", RECORDS, num_examples=3, rollouts_per_example=2, pass_threshold=0.6, price=price
    )
    page = write_and_parse(run, tmp_path)
    assert "unfinished, 6 were planned" in page.words
    assert "3 / 4" in page.words
    assert "cost, 1 per rollout" in page.words
    assert "| pass\\@\u20601 | 0.750 |" in markdown(run)


@pytest.mark.parametrize(
    "records", [[], [make_record(0, 0, None), make_record(1, 0, None)]], ids=["empty", "all failed"]
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_run_without_scores_has_a_report(tmp_path: Path, records: list[vf.RolloutRecord], finished: bool):
    run = write_run_folder(tmp_path / "run", records)
    if finished:
        finish_run(run, records)
    page = write_and_parse(run, tmp_path)
    assert f"0 / {len(records)}" in page.words
    assert len(page.rewards) == len(records) and page.data["histograms"] == []
    assert re.search(r"\| reward \| – \| –(\\\*)? \|", markdown(run))


def test_summaries_with_missing_fields_are_shown(tmp_path: Path):
    run = write_run_folder(tmp_path / "run", RECORDS)
    run.finish(
        {"rollouts": 4, "scored": 3, "reward": {"mean": None, "low": None, "high": None}, "latency": None, "cost": None}
    )
    assert "– – reward, 95% interval" in write_and_parse(run, tmp_path).words
    run.finish({"rollouts": 4, "reward": {"mean": 0.5, "low": 0.25, "high": 0.75}})
    assert "0.500 [0.250, 0.750] reward" in write_and_parse(run, tmp_path).words
    assert "| reward | 0.500 | \\[0.250, 0.750\\] |" in markdown(run)
    run.finish({"rollouts": 4, "reward": {"mean": 0.5, "low": 0.1, "high": 0.6, "caveat": "why"}})
    assert "0.500 [0.100, 0.600]* reward" in write_and_parse(run, tmp_path).words
    assert "\\* why" in markdown(run)
    run.finish({"rollouts": 4})
    assert "– – reward, 95% interval" in write_and_parse(run, tmp_path).words


def test_the_last_record_of_a_repeated_rollout_counts(tmp_path: Path):
    records = [make_record(0, 0, None), make_record(0, 0, 1.0), make_record(0, 1, 1.0), make_record(0, 1, None)]
    page = write_and_parse(write_run_folder(tmp_path / "run", records), tmp_path)
    assert "1 / 2" in page.words
    assert len(page.rewards) == 2


def test_the_number_of_omitted_rollouts_is_shown(tmp_path: Path):
    records = [make_record(i, j, i / 10 if i else None) for i in range(10) for j in range(4)]
    page = write_and_parse(write_run_folder(tmp_path / "run", records), tmp_path, rollouts=10)
    assert page.rewards == [None] * 4 + [0.3] * 3 + [1.1] * 3
    assert "30 of 40 are omitted" in page.words
    assert write_and_parse(write_run_folder(tmp_path / "run2", records), tmp_path, rollouts=0).rewards == []


@given(st.lists(st.none() | st.floats(-1, 1), max_size=40), st.integers(0, 50))
def test_the_requested_number_of_rollouts_is_chosen_without_duplicates(rewards: list[float | None], limit: int):
    outcomes = [(7 * i, reward) for i, reward in enumerate(rewards)]
    chosen = choose_rollouts(outcomes, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, len(rewards))
    reward_of = dict(outcomes)
    failed = [line for line in chosen if reward_of[line] is None]
    assert chosen[: len(failed)] == failed
    scored = [reward_of[line] for line in chosen[len(failed) :]]
    if len(rewards) > limit and None not in rewards and limit:
        ordered = sorted(r for r in rewards if r is not None)
        assert sorted(r for r in scored if r is not None) == sorted(
            ordered[: limit - limit // 2] + ordered[len(ordered) - limit // 2 :]
        )


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_damaged_line_is_omitted_and_counted(tmp_path: Path, is_complete: bool):
    run = write_run_folder(tmp_path / "run", RECORDS)
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b"{}\n")
    if is_complete:
        finish_run(run, RECORDS)
    page = write_and_parse(run, tmp_path)
    assert page.data["counts"][0] == "3 of 4 rollouts scored"
    assert "omitted: 1 damaged line of rollouts.jsonl" in page.data["counts"][1]
    assert page.rewards == [None, 0.2, 0.7, 1.2]


def test_a_function_named_reward_is_distinct_from_the_reward(tmp_path: Path):
    records = [make_record(scores=vf.Scores(0.5, {"reward": 1.0}, {"reward": 0.5}))]
    page = write_and_parse(write_run_folder(tmp_path / "run", records), tmp_path)
    titles = {histogram["title"]: histogram["mean"] for histogram in page.data["histograms"]}
    assert (titles["reward"], titles["reward (function)"]) == (0.5, 1.0)


def test_a_password_in_a_url_is_not_in_the_report(tmp_path: Path):
    write_report(
        write_run_folder(tmp_path / "run", RECORDS, base_url="http://me:secret@host/v1"), tmp_path / "out.html"
    )
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "secret" not in text
    assert "http://***@host/v1" in text


def test_a_long_rollout_is_shortened_with_a_note(tmp_path: Path):
    completion = [{"role": "assistant", "content": "x" * 50_000}]
    records = [make_record(0, 0, completion=completion), make_record(1, 0, completion=completion * 300)]
    page = write_and_parse(write_run_folder(tmp_path / "run", records), tmp_path)
    rollout, longer_rollout = page.data["rollouts"]
    assert f"{50_000 - MAX_TEXT_CHARS:,} characters left out" in rollout["completion"][0]["content"]
    assert len("".join(texts(longer_rollout))) < 2 * MAX_ROLLOUT_CHARS


# Training


def trained(path: Path, kind: str = "rl", steps: int = 3) -> Run:
    with write_run_folder(path, [], kind=kind, steps=5, data="runs/teacher") as run:
        for step in range(1, steps + 1):
            for i in range(4):
                run.append_rollout(make_record(i // 2, i % 2, None if (step, i) == (3, 3) else i / step, step=step))
            held_out = {"eval/optimal/reward/mean": 0.2 * step, "eval/optimal/reward/interval_low": 0.01}
            run.append_metrics({"step": step, "reward/mean": 1 / step, "time/step": 40.0, "x": math.pi, **held_out})
        run.append_alert({"step": 2, "id": "x", "text": EVIL})
    return run


def test_the_report_of_training_has_curves_alerts_measurements_and_rollouts(tmp_path: Path):
    page = write_and_parse(trained(tmp_path / "run"), tmp_path)
    assert page.data["title"] == "RL · quiz · someone/model" and not page.data["complete"]
    training = page.data["training"]
    assert [row["step"] for row in training["rows"]] == [1, 2, 3] and training["rows"][0]["x"] == 3.14159
    assert training["alerts"] == [{"step": 2, "id": "x", "text": EVIL, "line": EVIL}]
    assert [step["failed"] for step in training["steps"]] == [0, 0, 1] and training["groups"]["groups"] == 5
    assert page.data["values"] == [
        ["reward", "1.000", "0.333", "1.000", "1"],
        ["optimal (held out)", "0.200", "0.600", "0.600", "3"],
    ]
    assert page.data["cards"][0] == ["3 of 5", "steps"] and "2 minutes in all" in page.data["counts"]
    assert page.rewards == [None, 0.2, 0.533333, 0.866667]
    assert {rollout["step"] for rollout in page.data["rollouts"]} == {3} and "Rollouts of the last step." in page.data[
        "rollouts_note"
    ]
    assert page.data["again"] == f"rove rl @ {tmp_path}/run/config.toml --run-dir runs/again"
    text = markdown(Run(tmp_path / "run"))
    assert "| measured | first | last | best | at step |" in text and "3 of 5 steps taken" in text
    assert "<script>" not in text.replace(r"\<script", "")


def test_sft_runs_and_empty_runs_have_reports(tmp_path: Path):
    with write_run_folder(tmp_path / "sft", [], kind="sft", env="", data=["runs/a", "runs/b"]) as run:
        for step in (1, 2, 3):
            run.append_metrics({"step": step, "loss": abs(step - 2) + 0.5, "optim/lr": math.nan})
        run.finish({})
    page = write_and_parse(run, tmp_path)
    assert page.data["complete"] and page.rewards == [] and page.data["rollouts_note"] == ""
    assert page.data["values"] == [["loss", "1.500", "1.500", "0.500", "2"]]
    assert not (run.path / "index.sqlite").exists()
    for kind in ("rl", "sft", "eval"):
        page = write_and_parse(write_run_folder(tmp_path / f"new-{kind}", [], kind=kind), tmp_path)
        assert page.rewards == [] and not page.data["complete"]


metrics = st.dictionaries(
    st.sampled_from(["step", "reward/mean", "loss", "eval/a/reward/mean", "eval/" + EVIL + "/reward/mean"]),
    st.none() | st.floats() | st.integers(-9, 9) | st.text(max_size=3),
)


@given(st.lists(metrics.map(lambda row: {**row, "step": 1}), max_size=5))
def test_arbitrary_metrics_cause_no_error(rows: list[dict[str, Any]]):
    result = training_data(rows, [{"text": "of no step"}, {}])
    assert all(len(row) == len(result["head"]) for row in result["values"])


# Pieces


@given(st.text(max_size=300), st.integers(1, 100))
def test_a_shortened_text_has_a_note_and_keeps_its_beginning(value: str, limit: int):
    short = cut(value, limit)
    if len(value) <= limit:
        assert short == value
    else:
        assert f"… {len(value) - limit:,} characters left out …" in short
        assert short[: limit * 2 // 3] == value[: limit * 2 // 3]
    assert len(excerpt(value, limit)) <= limit
    assert "\n" not in excerpt(value, limit)


def test_modules_are_bundled_once_and_in_the_order_of_their_imports():
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


def test_numbers_are_formatted():
    assert [shown(None), shown(math.nan), shown(1234567), shown(0.5)] == ["–", "–", "1,234,567", "0.500"]


# Markdown


def test_the_markdown_summary_has_values_counts_and_the_command(tmp_path: Path):
    run = finish_run(write_run_folder(tmp_path / "run", RECORDS), RECORDS)
    text = markdown(run)
    assert text.startswith(
        "### quiz · someone/model\n\n| value | mean | 95% interval | weight |\n| --- | ---: | ---: | ---: |\n"
    )
    assert "\n| win | 0.500 |" in text
    assert (
        "\n3 of 4 rollouts scored; 1 failed\\: model\\: InfraError \\(1\\); stop reason\\: answered \\(3\\); \\* interval may"
        in text
    )
    assert f"`rove eval @ {run.path}/config.toml --run-dir runs/again`" in text


def test_the_command_for_a_training_measurement_has_a_model_placeholder(tmp_path: Path):
    run = write_run_folder(tmp_path / "run", RECORDS)
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace('model = "someone/model"', 'model = ""'))
    text = markdown(run)
    assert text.startswith("### quiz · a model in training\n")
    assert f"`rove eval @ {run.path}/config.toml -m FOLDER --run-dir runs/again`" in text


def test_markdown_has_no_links_or_mentions_and_long_texts_are_complete(tmp_path: Path):
    run = write_run_folder(tmp_path / "run", RECORDS, model="@octocat, #12, https://example.org")
    text = markdown(finish_run(run, RECORDS, stops={f"reason {i}": 1 for i in range(40)}))
    assert "\\@\u2060octocat, \\#12, https\\://example.org" in text
    assert "reason 39" in text


def test_pass_rates_of_some_examples_name_their_number(tmp_path: Path):
    records = [make_record(0, 0, 1.0), make_record(0, 1, 0.0), make_record(1, 0, 1.0), make_record(2, 0, 0.0)]
    rows = summary_data(finish_run(write_run_folder(tmp_path / "run", records), records).summary() or {})["values"]
    names = [name for name, *_ in rows if name.startswith("pass")]
    assert names == ["pass@1", "pass@2 (1 of 3 examples)", "pass^1", "pass^2 (1 of 3 examples)"]


def test_names_are_escaped_in_markdown_tables(tmp_path: Path):
    records = [make_record(scores=vf.Scores(1.0, {"a|b": 1.0}, {"a|b": 1.0}))]
    assert r"| a\|b | 1.000 |" in markdown(write_run_folder(tmp_path / "run", records))


def test_scores_of_test_records_are_consistent_with_their_weights():
    assert make_scores(1.0).reward == sum(
        make_scores(1.0).weights[name] * value for name, value in make_scores(1.0).rewards.items()
    )
