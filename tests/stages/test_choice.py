"""The recipe that `rove train` chooses for an environment."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import msgspec
import pytest
from fakes import tiny_model
from run_folders import make_record

import rove as vf
from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.stages import examination
from rove.stages.choice import SFT_GOAL, choose, for_one_start, limited, requested_examples
from rove.stages.examination import UNTRAINED_FACTOR, Evidence, ModelEvidence, Teacher, examine
from rove.stages.recipe import RecipeFile, as_toml
from rove.train.config import RLConfig, SFTConfig

ARGUMENTS = frozenset({"num_examples", "seed"})


def right(messages: Any, state: Any, rng: random.Random) -> str:
    return "yes"


def often(messages: Any, state: Any, rng: random.Random) -> str:
    return "yes" if rng.random() < 0.5 else "no, never"


def wrong(messages: Any, state: Any, rng: random.Random) -> str:
    return "no"


def correct(completion: Any) -> float:
    return float(completion[-1].content == "yes")


def env_with(**policies: Any) -> vf.Environment:
    rows = [{"question": f"q{i}?"} for i in range(50)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct], [2.0]), policies=policies)


async def evidence_of(**policies: Any) -> Evidence:
    return (await examine(env_with(**policies), ARGUMENTS)).evidence


async def test_policies_are_ordered_by_reward() -> None:
    evidence = await evidence_of(right=right, often=often)
    assert [policy.name for policy in evidence.policies] == ["often", "right"]
    weak, best = evidence.policies
    assert best.reward == 2.0
    assert 0 < weak.reward < 2
    assert evidence.functions == ["correct"]
    assert evidence.untrained_turns == 1
    assert evidence.examples == 50
    assert evidence.response_tokens == len(["no", ",", " never", "<|end|>"])


async def test_an_environment_without_policies_needs_a_pretrained_model() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no scripted policies to learn from; .*rove train NAME -m MODEL.*rove eval NAME -m TEACHER --train",
    ):
        await evidence_of()


async def test_rollout_seconds_exclude_one_time_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([3.0, 1.0, 31.0, 1.0, 1.0, 1.0])  # the first, second and all rollouts of `right`, then of `often`

    async def timed(work: Any) -> tuple[Any, float]:
        return await work, next(seconds)

    monkeypatch.setattr(examination, "_timed", timed)
    evidence = await evidence_of(right=right, often=often)
    rollouts = 2 * 50
    assert (evidence.setup_seconds, evidence.teacher_seconds) == (3.0, 30.0 / rollouts)
    assert evidence.rollout_seconds == 0.05 / rollouts  # the time of an evaluation of one rollout


async def test_a_policy_whose_rollouts_all_fail_is_named() -> None:
    def broken(messages: Any, state: Any, rng: random.Random) -> str:
        raise KeyError("board")

    with pytest.raises(ConfigError, match="reward_error: 50% of .* rollouts fail; the first, of broken: .*board"):
        choose("quiz", {}, await evidence_of(right=right, broken=broken))


async def test_a_pretrained_model_with_one_policy_starts_from_its_own_reward() -> None:
    model = ModelEvidence("small", 1000, reward=0.5, lowest=0.0, spread_share=0.1, response_tokens=4, groups=16)
    evidence = msgspec.structs.replace(await evidence_of(right=right), model=model)
    (sft,) = (section for section in choose("quiz", {}, evidence) if section.name == "sft")
    assert sft.values["target"] == pytest.approx(0.5 + SFT_GOAL * 1.5)
    assert "of the way from the model to the best policy" in sft.reason
    assert (evidence.task.weakest, evidence.task.lowest, evidence.task.best) == (0.5, 0.0, 2.0)
    with_two_policies = msgspec.structs.replace(await evidence_of(right=right, wrong=wrong), model=model)
    assert (with_two_policies.task.weakest, with_two_policies.task.lowest) == (0.0, None)


async def test_a_model_or_a_named_policy_can_be_the_teacher() -> None:
    model = Teacher("large", vf.ScriptedClient(right, "large"))
    evidence = (await examine(env_with(often=often), ARGUMENTS, teacher=model)).evidence
    assert [(policy.name, policy.model) for policy in evidence.policies] == [
        ("often", "scripted:often"),
        ("large", "large"),
    ]
    values = {section.name: section.values for section in choose("quiz", {}, evidence)}
    assert values[""]["references"] == ["scripted:often", "large"]
    assert (values["data"]["model"], values["data"]["num_examples"]) == ("large", 1000)
    # A named policy is imitated although another one is better, and even by a model that could begin with RL.
    evidence = (await examine(env_with(right=right, often=often, wrong=wrong), ARGUMENTS, teacher="often")).evidence
    small = ModelEvidence("small", 1000, reward=0.5, lowest=0.0, spread_share=0.9, response_tokens=4, groups=16)
    values = {section.name: section for section in choose("quiz", {}, msgspec.structs.replace(evidence, model=small))}
    assert values["data"].values["model"] == "scripted:often"
    assert values["data"].reason.startswith("The teacher: reward 0.88")
    assert evidence.task.best == evidence.teacher.reward < evidence.policies[-1].reward


async def test_the_teacher_is_the_shortest_of_the_best_policies() -> None:
    def wordy(messages: Any, state: Any, rng: random.Random) -> str:
        return "Yes, I think so."

    for policies in (
        {"right": right, "wordy": wordy, "wrong": wrong},
        {"wordy": wordy, "wrong": wrong, "right": right},
    ):
        env = env_with(**policies)
        env.rubric = vf.Rubric([lambda completion: float("yes" in completion[-1].content.casefold())])
        assert (await examine(env, ARGUMENTS)).evidence.policies[-1].name == "right"


async def test_a_teacher_that_is_no_better_is_refused() -> None:
    evidence = (await examine(env_with(right=right, wrong=wrong), ARGUMENTS, teacher="wrong")).evidence
    with pytest.raises(
        ConfigError, match=r"the teacher wrong earns 0.000, and wrong 0.000; expected a teacher that is better"
    ):
        choose("quiz", {}, evidence)


async def test_a_teacher_whose_rollouts_all_fail_is_named_and_its_client_is_closed() -> None:
    closed: list[str] = []

    class Broken(vf.ScriptedClient):
        async def close(self) -> None:
            closed.append(self.name)

    def fails(messages: Any, state: Any, rng: random.Random) -> str:
        raise KeyError("the key is invalid")

    teacher = Teacher("large", Broken(fails, "large"))
    with pytest.raises(
        ConfigError, match="every rollout of the teacher large fails; the first: .*the key is invalid.*another teacher"
    ):
        await examine(env_with(right=right, often=often), ARGUMENTS, teacher=teacher)
    assert closed == ["large"]


async def test_the_time_of_a_model_that_is_the_teacher_is_not_that_of_the_environment() -> None:
    teacher = Teacher("large", vf.ScriptedClient(right, "large"))
    evidence = (await examine(env_with(), ARGUMENTS, tiny_model(), teacher=teacher)).evidence
    assert evidence.rollout_seconds == 0.0 < evidence.teacher_seconds


async def test_a_model_is_examined_on_at_most_the_available_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "MODEL_OPERATIONS", 0.0)  # one group after another
    rows = [{"question": f"q{i}?"} for i in range(3)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))  # all rewards of the model are 0
    evidence = (await examine(env, ARGUMENTS, tiny_model())).evidence
    assert evidence.model is not None and (evidence.model.groups, evidence.model.spread_share) == (3, 0.0)


async def test_with_a_teacher_a_few_groups_of_equal_rewards_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "MODEL_OPERATIONS", 1.0)  # reached by one group
    evidence = (await examine(env_with(right=right, wrong=wrong), ARGUMENTS, tiny_model())).evidence
    assert evidence.model is not None and (evidence.model.groups, evidence.model.spread_share) == (3, 0.0)


async def test_without_a_policy_a_pretrained_model_begins_with_rl_if_any_group_has_different_rewards() -> None:
    model = ModelEvidence("small", 1000, reward=0.1, lowest=0.0, spread_share=0.125, response_tokens=4, groups=16)
    evidence = msgspec.structs.replace(await evidence_of(right=right), model=model, policies=[])
    sections = choose("quiz", {}, evidence)
    assert [section.name for section in sections if section.name in ("data", "sft", "rl")] == ["rl"]
    hopeless = msgspec.structs.replace(evidence, model=msgspec.structs.replace(model, spread_share=0.0))
    with pytest.raises(ConfigError, match="no_spread: in 100% of the groups all rewards of the model are equal"):
        choose("quiz", {}, hopeless)


async def test_a_new_model_needs_a_weak_policy_too() -> None:
    with pytest.raises(ConfigError, match="one scripted policy, 'right'; expected a good one and a weak one"):
        choose("quiz", {}, await evidence_of(right=right))


async def test_policies_that_fail_are_reported() -> None:
    def broken(messages: Any, state: Any, rng: random.Random) -> str:
        raise ValueError("no move")

    with pytest.raises(ConfigError, match="reward_error: every rollout fails; the first, of broken: .*no move"):
        await evidence_of(broken=broken)


async def test_equal_rewards_of_all_policies_are_rejected() -> None:
    def equally_good(messages: Any, state: Any, rng: random.Random) -> str:
        return "yes"

    with pytest.raises(ConfigError, match="no_spread: every rollout of 2 scripted policies has the reward 2"):
        await evidence_of(right=right, also_right=equally_good)


async def test_a_recipe_can_be_written_and_read() -> None:
    sections = choose("quiz", {"level": 3}, await evidence_of(right=right, often=often))
    text = as_toml(sections, "Recipe.\nChange any line.")
    assert text.startswith("# Recipe.\n# Change any line.\n")
    recipe = convert(RecipeFile, tomllib.loads(text))
    assert recipe.references == ["scripted:often", "scripted:right"]
    assert recipe.data["model"] == "scripted:right"
    assert recipe.data["env_args"] == {"num_examples": recipe.data["num_examples"], "level": 3}
    sft = convert(SFTConfig, {"data": "runs/data", "model": "models/new", **recipe.sft})
    sft.check()
    (stage,) = recipe.rl
    rl = convert(RLConfig, {"env": "quiz", "model": "models/new", **{k: v for k, v in stage.items() if k != "name"}})
    rl.check()
    assert rl.env_args["num_examples"] == rl.steps * rl.groups  # no example is repeated
    assert all(
        evaluation.env_args["seed"] != 0 for evaluation in (*sft.evaluation, *rl.evaluation)
    )  # other rows than those of the results table


async def test_rl_of_a_new_model_stays_near_the_model_after_sft() -> None:
    evidence = await evidence_of(right=right, often=often)
    (stages,) = (section.values for section in choose("quiz", {}, evidence) if section.name == "rl")
    assert stages[0]["loss"] == {"kl_penalty": 0.01}  # the divergence contains an entropy bonus
    assert stages[0]["equal_best"] == "shortest"
    longer = choose("quiz", {}, msgspec.structs.replace(evidence, sampled_tokens=40.0))
    (stages,) = (section.values for section in longer if section.name == "rl")
    assert stages[0]["loss"] == {"kl_penalty": 0.002}  # the divergence is a sum over the tokens of a rollout
    model = ModelEvidence("small", 1000, reward=0.5, lowest=0.0, spread_share=0.9, response_tokens=4, groups=16)
    pretrained = choose("quiz", {}, msgspec.structs.replace(evidence, model=model))
    (stages,) = (section.values for section in pretrained if section.name == "rl")
    assert stages[0]["loss"] == {"entropy_bonus": 0.01, "entropy_target": 0.15}


async def test_with_a_time_limit_and_tools_a_new_model_has_recall_layers() -> None:
    evidence = await evidence_of(right=right, often=often)
    with_tools = msgspec.structs.replace(evidence, has_tools=True)
    model = ModelEvidence("small", 1000, reward=0.5, lowest=0.0, spread_share=0.1, response_tokens=4, groups=16)
    new = {"arch": "llama", "size": "tiny", "env_args": {"num_examples": 150}}
    cases = [
        (with_tools, {**new, "arch": "lfm2", "init": "recall"}),
        (evidence, new),
        (msgspec.structs.replace(with_tools, model=model), {"name": "small"}),
    ]
    for facts, expected in cases:
        sections = choose("quiz", {}, facts)
        changed = for_one_start(sections, facts)
        [model_section] = [section for section in changed if section.name == "model"]
        assert model_section.values == expected
        assert "starts again" not in model_section.reason
        assert [a for a in sections if a.name != "model"] == [a for a in changed if a.name != "model"]


async def test_the_examination_sees_whether_there_are_tools() -> None:
    def look(word: str) -> str:
        return word

    env = vf.ToolEnv(
        tools=[look],
        dataset=[{"question": f"q{i}?"} for i in range(50)],
        rubric=vf.Rubric([correct], [2.0]),
        policies={"right": right, "often": often},
    )
    assert (await examine(env, ARGUMENTS)).evidence.has_tools
    assert not (await evidence_of(right=right, often=often)).has_tools


async def test_the_sft_target_is_between_the_policies() -> None:
    evidence = await evidence_of(right=right, often=often)
    weak, best = (item.reward for item in evidence.policies)
    (sft,) = (item.values for item in choose("quiz", {}, evidence) if item.name == "sft")
    assert sft["target"] == pytest.approx(weak + SFT_GOAL * (best - weak), abs=1e-4)


async def test_a_dataset_of_fixed_size_is_repeated() -> None:
    evidence = (await examine(env_with(right=right, often=often), frozenset())).evidence
    (data,) = (section.values for section in choose("quiz", {}, evidence) if section.name == "data")
    assert (data["num_examples"], data["env_args"]) == (50, {})
    assert data["rollouts_per_example"] == 1  # the best policy is deterministic
    evidence = (await examine(env_with(often=often, wrong=wrong), frozenset())).evidence
    (data,) = (section.values for section in choose("quiz", {}, evidence) if section.name == "data")
    assert data["rollouts_per_example"] > 100


async def test_a_small_dataset_is_repeated_for_at_most_100_epochs() -> None:
    evidence = (await examine(env_with(right=right, often=often), ARGUMENTS)).evidence
    sections = {section.name: section.values for section in choose("quiz", {"num_examples": 50, "seed": 1}, evidence)}
    assert sections["data"]["num_examples"] == 50
    assert sections["sft"]["epochs"] == 100
    sampled, table = sections["sft"]["evaluation"][0], sections["evaluation"]
    assert sampled["env_args"] == table["env_args"] == {"num_examples": 50, "seed": 1}
    assert (sampled["num_examples"], table["skip_examples"], table["num_examples"]) == (16, 16, 34)
    assert sections["model"]["env_args"] == {"num_examples": 50, "seed": 1}


async def test_an_environment_with_fewer_examples_than_requested_gets_more_epochs() -> None:
    evidence = await evidence_of(right=right, often=often)
    sections = choose("quiz", {}, evidence)
    requested = requested_examples(sections) or (0, 0)
    assert requested == (40_000, 1000)
    assert limited(evidence, requested, (None, 1000)) == evidence
    chosen = choose("quiz", {}, limited(evidence, requested, (400, 80)))
    recipe = convert(RecipeFile, tomllib.loads(as_toml(chosen, "Recipe.")))
    # the environment argument does not change: environments may count rows before a split
    assert (recipe.data["num_examples"], recipe.data["env_args"]) == (400, {"num_examples": 40_000})
    assert recipe.sft["epochs"] == 100
    sampled = recipe.sft["evaluation"][0]
    assert (sampled["num_examples"], recipe.evaluation["skip_examples"], recipe.evaluation["num_examples"]) == (
        26,
        26,
        54,
    )
    assert "The first 26 examples choose the weights in training; the table uses others." in as_toml(chosen, "Recipe.")
    assert recipe.evaluation["env_args"]["num_examples"] == sampled["env_args"]["num_examples"] == 1000
    assert "The environment has 400 training examples, fewer than requested." in as_toml(chosen, "Recipe.")


async def test_sft_excludes_failures_of_the_teacher() -> None:
    def seldom(messages: Any, state: Any, rng: random.Random) -> str:
        return "yes" if rng.random() < 0.3 else "no"

    evidence = await evidence_of(seldom=seldom, wrong=wrong)
    (sft,) = (section.values for section in choose("quiz", {}, evidence) if section.name == "sft")
    assert 0 < sft["min_reward"] <= 2.0


async def test_equal_rewards_are_rejected_even_if_some_rollouts_fail() -> None:
    def fails(messages: Any, state: Any, rng: random.Random) -> str:
        if rng.random() < 0.2:
            raise ValueError("no move")
        return "yes"

    with pytest.raises(ConfigError, match="no_spread"):
        await evidence_of(right=right, fails=fails)


async def test_short_rollouts_get_more_groups_per_step_and_long_ones_fewer_steps() -> None:
    evidence = await evidence_of(right=right, often=often)

    def size(tokens: float, **changes: Any) -> tuple[int, int]:
        changed = msgspec.structs.replace(evidence, rollout_tokens=tokens, **changes)
        (rl,) = next(section.values for section in choose("quiz", {}, changed) if section.name == "rl")
        assert rl["env_args"].get("num_examples", 0) in (0, rl["steps"] * rl["batch_size"] // 8)
        return rl["batch_size"] // 8, rl["steps"]

    assert size(20) == (128, 400)
    assert size(64) == (64, 305)
    assert size(128) == (32, 305)
    assert size(256) == (32, 152)
    assert size(5000) == (32, 60)
    assert size(20, arguments=frozenset(), examples=50) == (50, 400)  # not more groups than examples


def settings_of(evidence: Evidence, name: str) -> Any:
    return next(section.values for section in choose("quiz", {}, evidence) if section.name == name)


async def test_an_environment_is_torn_down_once_after_all_policies() -> None:
    ends: list[str] = []

    class Database(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            assert not ends, "the database is closed"

        @vf.teardown
        async def close(self) -> None:
            ends.append("closed")

    policies = {"right": right, "wrong": wrong}
    env = Database(dataset=[{"question": "q?"}], rubric=vf.Rubric([correct]), policies=policies)
    assert [policy.reward for policy in (await examine(env, ARGUMENTS)).evidence.policies] == [0.0, 1.0]
    assert ends == ["closed"]


async def test_a_game_that_waits_for_a_legal_move_does_not_wait_forever() -> None:
    class Game(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str | None:
            if messages[-1].content in ("yes", "no"):
                state["final_env_response"] = "over"
                return None
            return "not a legal move"

    rubric = vf.Rubric([lambda completion: float(completion[0].content == "yes")])
    env = Game(dataset=[{"question": "q?"}], rubric=rubric, policies={"right": right, "wrong": wrong})
    assert (await examine(env, ARGUMENTS)).evidence.untrained_turns == UNTRAINED_FACTOR


async def test_examples_of_a_finite_generator_are_counted() -> None:
    env = vf.SingleTurnEnv(
        dataset=lambda: ({"question": f"q{i}?"} for i in range(500)),
        eval_dataset=lambda: ({"question": f"held out {i}?"} for i in range(150)),
        rubric=vf.Rubric([correct]),
        policies={"often": often, "wrong": wrong},
    )
    evidence = (await examine(env, frozenset())).evidence
    assert (evidence.examples, evidence.held_out) == (500, 150)
    data, table = settings_of(evidence, "data"), settings_of(evidence, "evaluation")
    assert data["num_examples"] == 500 and data["rollouts_per_example"] > 10
    assert table["num_examples"] + table["skip_examples"] == 150
    assert settings_of(evidence, "rl")[0]["curriculum"] == {"shuffle": True}  # the rows may be sorted
    endless = msgspec.structs.replace(evidence, examples=None, held_out=0)
    with pytest.raises(ConfigError, match="no held-out examples"):
        choose("quiz", {}, endless)


async def test_rewards_that_compare_the_members_of_a_group_are_measured_in_groups() -> None:
    @vf.group_reward
    def shortest(completions: list[Any]) -> list[float]:
        lengths = [len(completion[-1].content) for completion in completions]
        return [float(length == min(lengths)) for length in lengths]

    rows = [{"question": f"q{i}?"} for i in range(2000)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([shortest]), policies={"often": often, "wrong": wrong})
    evidence = (await examine(env, frozenset())).evidence
    assert evidence.has_group_rewards
    for stage in (settings_of(evidence, "evaluation"), settings_of(evidence, "rl")[0]["evaluation"][0]):
        assert stage["rollouts_per_example"] == 8
    assert settings_of(evidence, "evaluation")["num_examples"] == 125
    assert settings_of(evidence, "data")["rollouts_per_example"] >= 8


@pytest.mark.parametrize("unit", [0.001, 1.0, 1000.0])
async def test_weights_beside_the_reward_follow_its_magnitude(unit: float) -> None:
    evidence = await evidence_of(right=right, wrong=wrong)  # rewards of 0 and 2
    scaled = [
        msgspec.structs.replace(
            policy, **{name: getattr(policy, name) * unit for name in ("reward", "highest", "lowest")}
        )
        for policy in evidence.policies
    ]
    evidence = msgspec.structs.replace(evidence, policies=scaled)
    assert settings_of(evidence, "rl")[0]["loss"] == {"kl_penalty": pytest.approx(0.01 * unit)}
    assert settings_of(evidence, "sft")["target"] == pytest.approx(1.8 * unit)


async def test_a_short_sft_has_a_short_warm_up_and_long_rollouts_have_small_batches() -> None:
    evidence = await evidence_of(right=right, wrong=wrong)
    assert "warmup_steps" not in settings_of(evidence, "sft")
    model = ModelEvidence("large", 10**8, reward=0.0, lowest=0.0, spread_share=0.0, response_tokens=4, groups=8)
    long = msgspec.structs.replace(evidence, model=model, rollout_tokens=2000.0)
    sft = settings_of(long, "sft")
    assert (sft["batch_size"], sft["warmup_steps"]) == (8, 1)


async def test_raw_texts_are_refused_before_sft() -> None:
    evidence = await evidence_of(right=right, wrong=wrong)
    with pytest.raises(ConfigError, match="message_type 'completion'"):
        choose("quiz", {}, msgspec.structs.replace(evidence, is_raw_text=True))


def test_a_model_is_clearly_worse_than_its_teacher_only_if_there_is_one() -> None:
    def rewarded(*rewards: float) -> list[vf.RolloutRecord]:
        return [make_record(i, win=reward) for i, reward in enumerate(rewards)]

    is_worse = examination._is_clearly_worse
    assert not is_worse(rewarded(-1.0), [])
    assert not is_worse(rewarded(-0.15), rewarded(-0.2))
    assert is_worse(rewarded(-0.9, -1.0), rewarded(1.0))
    assert is_worse(rewarded(0.0), rewarded(1.0))
