"""The result of an evaluation: attributes, the form in files, the table, the frame and the figure."""

from __future__ import annotations

import builtins
import io
import math
import sys

import msgspec
import pytest
from rich.console import Console

import rove
from rove.core.errors import ConfigError
from rove.statistics import Price, Tally
from rove.statistics.result import EvaluationResult
from tests.statistics.test_summary import failed, scored


def make_result() -> EvaluationResult:
    tally = Tally(price=Price(input=1.0, output=1.0))
    for record in (scored("a", 1.0), scored("a", 0.0), scored("b", 0.0), failed()):
        tally.add(record)
    return tally.result()


def test_attributes_have_the_values_of_the_file():
    result = make_result()
    stored = msgspec.json.decode(msgspec.json.encode(result.to_dict()))
    assert stored["reward"]["mean"] == result.reward.mean == 0.5
    assert stored["pass@k"]["1"]["mean"] == result.pass_at_k[1].mean
    assert stored["pass^k"]["2"]["left_out"] == result.pass_hat_k[2].left_out == 1
    assert stored["tokens_per_rollout"]["prompt"] == result.tokens_per_rollout.prompt
    assert list(result.metrics) == ["num_turns"]


def test_the_file_has_no_keys_for_parts_that_do_not_exist():
    result = make_result()
    absent = {"model_roles", "environments", "broken_rewards", "rescored", "run"}
    assert not absent & result.to_dict().keys()
    assert result.to_dict()["cost"].keys() == {"total", "per_rollout"}
    assert "cost" not in Tally().result().to_dict()


def test_a_result_is_immutable():
    with pytest.raises(AttributeError):
        make_result().scored = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_the_table_shows_the_reward_and_its_functions():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_result().table)
    text = console.export_text()
    assert "reward" in text
    assert "num_turns" in text
    assert "0.500" in text


def test_the_table_of_groups_shows_pass_at_k_and_explains_its_asterisks():
    lines = [[cell.strip() for cell in line.split("│")[1:3]] for line in str(make_result()).splitlines() if "│" in line]
    assert lines[1:6] == [
        ["pass@1 (reward ≥ 1)", "0.250"],
        ["pass@2 (one of 2)", "1.000"],
        ["1 of 2 examples", ""],
        ["pass^2 (all of 2)", "0"],
        ["1 of 2 examples", ""],
    ]
    assert "* no interval: fewer than 2 examples; no interval: all values are equal" in str(make_result())
    single = Tally()
    single.add(scored("a", 1.0))
    single.add(scored("b", 0.0))
    assert "pass" not in str(single.result())


def test_a_frame_has_a_row_per_value():
    pytest.importorskip("pandas")
    frame = make_result().to_pandas()
    assert list(frame.index) == ["reward", "correct", "num_turns", "pass@1", "pass@2", "pass^1", "pass^2"]
    assert frame.loc["correct", "weight"] == 2.0
    assert math.isnan(frame.loc["reward", "weight"])
    assert list(Tally().result().to_pandas().columns) == ["mean", "low", "high", "caveat", "weight"]


@pytest.mark.broad
def test_a_plot_has_a_label_per_value():
    pytest.importorskip("matplotlib")
    [axes] = make_result().plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["reward", "correct", "num_turns"]


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("plot", "matplotlib")])
def test_a_missing_package_is_named_with_its_command(monkeypatch, method: str, package: str):
    real_import = builtins.__import__

    def import_without(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without)
    monkeypatch.delitem(sys.modules, "rove.utils.figure", raising=False)
    with pytest.raises(ConfigError, match=rf"'{package}', which is not installed.*pip install"):
        getattr(make_result(), method)()


def test_a_comparison_has_a_table():
    records = [scored("a", 1.0), scored("b", 0.0)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(rove.compare(records, records, names=("old", "new")).table)
    assert "difference" in console.export_text()
