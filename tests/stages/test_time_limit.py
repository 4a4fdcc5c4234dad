"""Sizes of a recipe that must fit a time limit."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.doctor.estimate import OVERHEAD, Estimate
from rove.stages.recipe import Section
from rove.stages.reporter import SilentReporter
from rove.stages.request import TrainRequest
from rove.stages.time_limit import MIN_EXAMPLES, MIN_GROUPS, MIN_STEPS, fit_to_time
from rove.stages.train_model import prepare

ROLLOUT = 0.2
EVALUATION = {"num_examples": 200, "rollouts_per_example": 1, "every": 10}
RL = {"steps": 60, "batch_size": 256, "evaluation": [EVALUATION]}
SFT = {"epochs": 4, "batch_size": 32, "evaluation": [EVALUATION]}
TABLE = {"num_examples": 400}
DATA = {"num_examples": 1000, "rollouts_per_example": 1}


def recipe(with_sft: bool = True) -> list[Section]:
    stages = [("data", DATA), ("sft", SFT)] if with_sft else []
    sections = [Section(name, copy.deepcopy(values)) for name, values in [*stages, ("rl", [RL]), ("evaluation", TABLE)]]
    return sections


def estimated(with_sft: bool = True) -> Estimate:
    evaluation = OVERHEAD * 200 * ROLLOUT / 10
    return Estimate(
        rollout=ROLLOUT,
        data=30.0 if with_sft else 0.0,
        sft_step=3.0 + evaluation if with_sft else 0.0,
        sft_steps=120 if with_sft else 0,
        rl_step=80.0 + evaluation,
        rl_steps=60,
        initial=40.0,
        table=480.0,
        memory=1e9,
    )


def by_name(sections: list[Section]) -> dict[str, Any]:
    return {section.name: section.values for section in sections}


def test_a_recipe_that_fits_only_gets_time_limits():
    sections, estimate = fit_to_time(recipe(), estimated(), minutes=200)
    values = by_name(sections)
    limits = values["sft"].pop("max_minutes"), values["rl"][0].pop("max_minutes")
    assert (sections, estimate) == (recipe(), estimated())
    assert sum(limits) == pytest.approx(200 - (30 + 480) / 60, abs=0.1)


@given(st.floats(1.0, 300.0), st.booleans())
def test_every_recipe_fits_and_is_no_smaller_than_necessary(minutes: float, with_sft: bool):
    try:
        sections, estimate = fit_to_time(recipe(with_sft), estimated(with_sft), minutes)
    except ConfigError:
        assert minutes < 15
        return
    assert estimate.most <= 60 * minutes
    values = by_name(sections)
    [rl] = values["rl"]
    assert rl["steps"] == estimate.rl_steps >= MIN_STEPS and rl["batch_size"] >= 8 * MIN_GROUPS
    assert values["evaluation"]["num_examples"] >= MIN_EXAMPLES <= rl["evaluation"][0]["num_examples"]
    if rl["steps"] < RL["steps"]:  # another step would not have fitted
        assert estimate.most + estimate.rl_step > 60 * minutes
    stage_limits = rl["max_minutes"]
    if with_sft:
        assert (values["sft"]["epochs"], values["data"]["num_examples"]) >= (1, 1)
        stage_limits += values["sft"]["max_minutes"]
    assert 60 * stage_limits + estimate.data + estimate.table == pytest.approx(60 * minutes, abs=7)


def test_a_quarter_of_an_hour_leaves_twenty_steps_of_fewer_groups():
    sections, estimate = fit_to_time(recipe(with_sft=False), estimated(with_sft=False), minutes=15)
    values = by_name(sections)
    assert values["evaluation"] == {"num_examples": 187}
    assert 20 <= values["rl"][0]["steps"] < 30 and values["rl"][0]["batch_size"] == 96
    assert 14 * 60 < estimate.most <= 15 * 60


@pytest.mark.parametrize(("examples", "per_example"), [(20, 2000), (3, 4), (40_000, 1)])
def test_if_time_is_short_sft_gets_fewer_epochs_before_fewer_examples(examples: int, per_example: int):
    values = by_name(recipe())
    values["data"] |= {"num_examples": examples, "rollouts_per_example": per_example}
    sections = [Section(name, value) for name, value in values.items()]
    long_epochs = msgspec.structs.replace(estimated(), sft_steps=4 * 200, sft_step=6.0)
    data = by_name(fit_to_time(sections, long_epochs, minutes=30)[0])["data"]
    used = data["num_examples"], data["rollouts_per_example"]
    assert 0.2 < used[0] * used[1] / (examples * per_example) < 0.9
    assert used[0] == examples or used[1] == 1


def test_the_time_ends_sft_in_its_last_epoch():
    sections, estimate = fit_to_time(recipe(), estimated(), minutes=26)
    epochs, steps_per_epoch = by_name(sections)["sft"]["epochs"], 120 // SFT["epochs"]
    assert (epochs - 1) * steps_per_epoch < estimate.sft_steps < epochs * steps_per_epoch


def test_too_little_time_is_refused_with_the_time_needed():
    with pytest.raises(
        ConfigError, match=r"minutes is 2; expected at least \d+: the smallest recipe takes that long"
    ) as error:
        fit_to_time(recipe(), estimated(), minutes=2)
    assert minutes_in(error.value) > 2


def minutes_in(error: ConfigError) -> int:
    return int(str(error).split("at least ")[1].split(":")[0])


@given(st.floats(0.3, 6.0), st.floats(0.3, 6.0), st.booleans())
def test_a_recipe_fits_the_time_that_the_error_states(table: float, rl_step: float, with_sft: bool):
    whole = estimated(with_sft)
    estimate = msgspec.structs.replace(whole, table=table * whole.table, rl_step=rl_step * whole.rl_step)
    with pytest.raises(ConfigError) as error:
        fit_to_time(recipe(with_sft), estimate, minutes=0.1)
    least = minutes_in(error.value)
    assert fit_to_time(recipe(with_sft), estimate, minutes=least)[1].rl_steps >= MIN_STEPS
    with pytest.raises(ConfigError, match=f"at least {least}:"):
        fit_to_time(recipe(with_sft), estimate, minutes=least - 1)


def test_minutes_belong_to_the_request(tmp_path: Any):
    plain, limited = TrainRequest("x", "m"), TrainRequest("x", "m", minutes=15.0)
    assert plain.values["minutes"] is None and limited.values["minutes"] == 15.0
    assert plain.folder_name(0) != limited.folder_name(0)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="minutes is"):
            TrainRequest("x", "m", minutes=wrong)
    with pytest.raises(ConfigError, match="minutes and a recipe"):
        prepare(limited, "recipe.toml", tmp_path, 0, "auto", SilentReporter(), lambda path, values: None)
    assert msgspec.to_builtins(limited)["minutes"] == 15.0
