"""Test the data that the server prepares for pages: tables of runs, charts, colors of tokens, boards and copied texts."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.findings import Finding
from rove.core.records import StepTokens, TrajectoryStep
from rove.runs.metrics import panels, with_derived, zero_advantage_share
from rove.runs.serialization import encode_record
from rove.viewer.index import alert_rows
from rove.viewer.rollouts import copied_text, describe_rollout, tool_results
from rove.viewer.run_table import RunSelection, arrange, matrix, reward_ranges, with_difference
from rove.viewer.token_colors import COLORS, color_tokens


def run_row(name: str, mean: float | None = None, **fields: Any) -> dict[str, Any]:
    """Return a row of the table of runs."""
    reward = None if mean is None else {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "caveat": None}
    defaults = {"kind": "eval", "env": "quiz", "model": "m", "status": "complete", "changed": 1.0, "measure": "reward"}
    return {**defaults, "name": name, "reward": reward, "values": {}, "tags": [], **fields}


ROWS = [
    run_row("a", 0.5, values={"setting.seed": "1", "metric.win": 0.25}),
    run_row("b", 0.25, values={"setting.seed": "2"}, tags=["good"]),
    run_row("rl", 0.75, kind="rl", env="game"),
    run_row("rl/evaluations/x/1", 0.1, env="game"),
    run_row("broken", kind="unreadable", env="", model=""),
]


@each_row(
    ("selection", "names"),
    [
        (RunSelection(), "a b rl rl/evaluations/x/1 broken"),
        (RunSelection(without={"rl/evaluations/x/1"}), "a b rl broken"),
        (RunSelection(text="quiz"), "a b"),
        (RunSelection(text="QUIZ seed=2"), "b"),
        (RunSelection(text="setting.seed=1"), "a"),
        (RunSelection(text="kind=rl"), "rl"),
        (RunSelection(text="win=0.25"), "a"),
        (RunSelection(text="seed=3"), ""),
        (RunSelection(tag="good"), "b"),
        (RunSelection(kind="rl"), "rl"),
        (RunSelection(sort="reward"), "rl a b rl/evaluations/x/1 broken"),
        (RunSelection(sort="reward", descending=False), "rl/evaluations/x/1 b a rl broken"),
        (RunSelection(sort="metric.win"), "a b rl rl/evaluations/x/1 broken"),
        (RunSelection(sort="setting.seed", descending=False), "a b rl rl/evaluations/x/1 broken"),
    ],
)
def test_runs_are_filtered_and_sorted(selection: RunSelection, names: str):
    assert [row["name"] for row in arrange(ROWS, selection)] == names.split()


def test_differences_to_a_baseline_need_the_same_environment_and_a_reward():
    difference = with_difference(ROWS[0], ROWS[1])["difference"]
    assert difference["mean"] == pytest.approx(0.25)
    assert [difference["low"], difference["high"]] == pytest.approx(
        [0.25 - math.hypot(0.1, 0.1), 0.25 + math.hypot(0.1, 0.1)]
    )
    assert with_difference(ROWS[2], ROWS[0])["difference"] is None
    assert with_difference(ROWS[4], ROWS[0])["difference"] is None


def test_the_matrix_has_the_latest_evaluation_of_each_model():
    rows = [*ROWS, run_row("later", 0.9, changed=2.0), run_row("other", 0.3, model="n", env="game")]
    result = matrix(rows)
    assert (result["models"], result["envs"]) == (["m", "n"], ["game", "quiz"])
    names = [[cell and (cell["name"], cell["runs"]) for cell in cells] for cells in result["cells"]]
    assert names == [[("rl/evaluations/x/1", 1), ("later", 3)], [("other", 1), None]]


def test_the_range_of_an_environment_covers_those_of_its_runs():
    rows = [
        run_row("a", range=[0.0, 1.2]),
        run_row("b", range=[-0.5, 1.0]),
        run_row("c", env="x", range=[0.0, 2.0]),
        run_row("d"),
    ]
    assert reward_ranges(rows) == {"quiz": (-0.5, 1.2), "x": (0.0, 2.0)}


def test_charts_are_chosen_from_the_metrics():
    rows = [
        {"step": 1, "reward/mean": 0.5, "reward/won": 0.4, "metrics/won": 0.5, "metrics/turns": 4.0, "other": 1.0},
        {
            "step": 2,
            "reward/mean": 0.6,
            "eval/held/reward/mean": 0.5,
            "kl/mean": 0.1,
            "groups/all": 4,
            "groups/zero_spread": 1,
        },
    ]
    charts = {chart["title"]: chart for chart in panels(rows)}
    assert list(charts) == [
        *("reward", "reward functions", "zero-advantage groups", "metrics", "metrics above 1"),
        *("held-out reward", "KL between sampler and trainer"),
    ]
    assert charts["reward functions"]["curves"] == {"reward/won": "won"} and charts["reward functions"]["named"]
    assert charts["metrics above 1"]["curves"] == {"metrics/turns": "turns"}
    assert charts["held-out reward"]["curves"] == {"eval/held/reward/mean": "held"}
    assert with_derived(rows[1])["derived/zero_advantage"] == 0.25
    assert with_derived({"time/sampling": 1.0, "time/training": 3.0, "tokens": 8.0})["derived/throughput"] == 2.0
    assert with_derived({"time/step": 2.0, "time/sampling": 1.0})["derived/seconds"] == 2.0
    assert panels([{"step": 1, "reward/mean": value} for value in ("x", True, None, 10**400, [1])]) == []


def test_tokens_are_colored_with_every_scale():
    tokens = StepTokens([5], [8, 9], [-0.02, -3.0], 3)
    line = encode_record(make_record(step=1, steps=[TrajectoryStep([], [], tokens=tokens)]))
    rollout = describe_rollout(line, {5: "a", 8: "b", 9: ""}.__getitem__)
    looks = {
        color: [look for _, look, _ in color_tokens(rollout["tokens"], 0.5, color)["turns"][0]["tokens"]]
        for color in COLORS
    }
    assert looks["logprob"] == ["given", "p0", "p4"] and looks["mask"] == ["given", "trained", "trained"]
    assert looks["advantage"] == ["given", "good", "good"] and looks["version"] == ["given", "p0", "p0"]
    assert looks["entropy"] == looks["ratio"] == ["given", "sampled", "sampled"]
    colored = color_tokens(rollout["tokens"], 0.5, "entropy")
    assert colored["missing"] and colored["spelled"]
    assert [text for text, _, _ in colored["turns"][0]["tokens"]] == ["a", "b", "·"]
    assert colored["summary"] == "2 sampled tokens, mean log-probability -1.51, reward minus group mean +0.500"
    rollout["tokens"][0]["trained"] = {"logprobs": [-0.02, -2.9], "entropies": [0.01, 9.0], "advantage": -1.0}
    colored = color_tokens(rollout["tokens"], 0.5, "ratio")
    assert [look for _, look, _ in colored["turns"][0]["tokens"]] == ["given", "p0", "p3"] and not colored["missing"]
    assert "ratio 1.105, entropy 9" in colored["turns"][0]["tokens"][2][2]
    msgspec.json.encode(colored)


@pytest.mark.parametrize("logprob", [800.0, -1e308, math.inf])
def test_tokens_with_extreme_numbers_are_colored(logprob: float):
    turn = {
        "prompt": [],
        "sampled": [[1, None]],
        "logprobs": [logprob],
        "versions": [[1, 10**9]],
        "left_out": 0,
        "fresh": True,
    }
    turn["trained"] = {"logprobs": [-logprob], "entropies": [], "advantage": 0.0}
    for color in COLORS:
        msgspec.json.encode(color_tokens([turn], None, color))


def test_tool_calls_are_paired_with_their_results():
    def tool_calls(*ids: object) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": id_} for id_ in ids]}

    def result(call_id: object) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id}

    turns = [
        tool_calls("a", "b"),
        result("b"),
        result("a"),
        tool_calls("a"),
        {"role": "user"},
        result("a"),
        result("a"),
    ]
    assert tool_results(turns) == {"0": [2, 1], "3": [5]}  # the last result has no call
    assert tool_results([tool_calls("a", "b"), result("a"), tool_calls("b"), result("a")]) == {
        "0": [1, None],
        "2": [None],
    }
    assert tool_results([tool_calls("a", "a"), result("a"), result("a")]) == {"0": [1, 2]}
    assert tool_results([tool_calls(None), {"role": "tool"}]) == {"0": [1]}  # from servers that send no ids
    hostile = [{"role": "assistant", "tool_calls": calls} for calls in ("x", {}, [1, {"id": {}}, []], 7)]
    assert tool_results([*hostile[:3], {"role": "tool", "tool_call_id": []}]) == {"2": [None, None, None]}


def test_a_rollout_is_copied_as_json_test_case_or_curl():
    call = {"role": "assistant", "content": "it's " + "x" * 300_000, "tool_calls": "odd"}
    line = encode_record(make_record(completion=[call]))
    assert msgspec.json.decode(copied_text(line, "json", "quiz", "m")) == msgspec.json.decode(line)
    case = msgspec.json.decode(copied_text(line, "test", "quiz", "m"))
    assert case["replies"] == [call["content"]] and (case["env"], case["answer"], case["reward"]) == ("quiz", "0", 1.2)
    *_, flag, body = shlex.split(copied_text(line, "curl", "quiz", "it's"))
    assert flag == "-d" and msgspec.json.decode(body) == {
        "model": "it's",
        "messages": [{"role": "user", "content": "question 0"}],
    }
    with pytest.raises(ConfigError, match="as is 'pdf'; expected curl, json or test"):
        copied_text(line, "pdf", "quiz", "m")


def test_the_reason_why_a_rollout_stopped_is_described():
    truncated = make_record(is_truncated=True, steps=[TrajectoryStep([], [], finish_reason="length")])
    texts = [
        describe_rollout(encode_record(rollout))["stopped"]
        for rollout in (make_record(), make_record(win=None), truncated)
    ]
    assert texts == [
        "After 1 turn: answered.",
        "Failed after 0 turns.",
        "After 1 turn: answered; truncated: the last response reached its maximum length.",
    ]


def test_alerts_have_a_line(tmp_path: Path):
    written = Finding("length_growth", "255 tokens per rollout", step=9)
    edited = {"step": 4, "id": "nothing", "severity": "high", "text": "x"}
    rows = [msgspec.json.encode(row) for row in (edited, written)]
    (tmp_path / "alerts.jsonl").write_bytes(b"\n".join([rows[0], b"{", rows[1], b""]))
    alerts, damaged = alert_rows(tmp_path)
    assert [(row["step"], row["id"], row["line"]) for row in alerts] == [
        (4, "nothing", "x"),
        (9, "length_growth", str(written)),
    ]
    assert damaged == 1


def test_the_share_of_zero_advantage_groups_counts_groups_of_all_steps():
    rows = [{"groups/all": 4, "groups/zero_spread": 1}, {"groups/all": 12.0, "groups/zero_spread": 11.0}]
    assert zero_advantage_share(*rows) == 0.75
    assert zero_advantage_share(*rows, {"groups/all": "x", "groups/zero_spread": 1}, {"reward/mean": 0.5}) == 0.75
    assert zero_advantage_share() is None and zero_advantage_share({"groups/all": 0, "groups/zero_spread": 0}) is None
