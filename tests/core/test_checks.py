"""Messages about values that do not have the type that a setting states."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import each_row

from rove.core.checks import Settings
from rove.core.errors import SettingError
from rove.core.protocols import SamplingParams
from rove.core.ranges import NonNegativeFloat, PositiveInt


class Example(Settings, frozen=True, kw_only=True):
    counts: list[PositiveInt] = []
    prices: dict[str, NonNegativeFloat] = {}


@each_row(
    ("values", "expected"),
    [
        ({"counts": [1, 0]}, "counts[1] is 0; expected an integer, 1 or more"),
        ({"counts": (1, 0)}, "counts[1] is 0; expected an integer, 1 or more"),
        ({"counts": {0}}, "counts[0] is 0; expected an integer, 1 or more"),
        ({"prices": {"input": 1, "output": -1}}, "prices.output is -1; expected a number, 0 or more"),
        ({"prices": {"input": 1, "output": "1"}}, "prices.output is '1'; expected a number, 0 or more"),
    ],
)
def test_a_wrong_item_of_a_setting_is_named(values: dict[str, Any], expected: str):
    with pytest.raises(SettingError) as raised:
        Example(**values)
    assert str(raised.value) == expected


def test_a_logit_bias_that_is_a_text_is_named():
    with pytest.raises(SettingError, match="logit_bias.5 is '1'; expected a number, -100 to 100"):
        SamplingParams.from_args({"logit_bias": {5: "1"}})
