"""The comparison of two runs as Markdown."""

from __future__ import annotations

from rove.core.records import RolloutRecord, Scores
from rove.stages.comparison import comparison_markdown
from rove.statistics import compare
from tests.runs.test_serialization import make_record


def record(example: int, reward: float, name: str) -> RolloutRecord:
    scores = Scores(reward, {name: reward}, {name: 1.0}, {})
    return make_record(example_key=f"key{example}", example_id=example, rollout_index=0, scores=scores)


def test_a_comparison_is_a_table_with_every_value():
    name = "win|<b>"
    a = [record(i, 0.0, name) for i in range(20)]
    b = [record(i, float(i > 4), name) for i in range(20)]
    markdown = comparison_markdown(compare(a, b, names=("old", "ne`w|")), {"temperature": [0.0, None]})
    lines = markdown.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert table[0].startswith("| value | `old` | ``ne`w\u2502`` |")
    assert table[2].startswith("| `reward` | 0 | 0.750 | +0.750 |") and table[2].endswith("| higher |")
    assert table[3].startswith("| `win\u2502<b>` |")
    assert lines[0].startswith("**ne\\`w\\| is better than old\\: reward +0.750")
    assert "higher on 15, equal on 5, lower on 0 examples" in markdown
    assert lines[-1] == "- `temperature`: `0.0` → not set"
