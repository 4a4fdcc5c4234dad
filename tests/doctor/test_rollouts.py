"""Checks of sampled groups."""

from __future__ import annotations

from typing import Any

import msgspec
from fakes import bpe_tokenizer, make_rollout, tiny_model
from tiers import each_row

import rove
from rove.core.findings import HIGH, MEDIUM, OK, SKIPPED
from rove.core.messages import AssistantMessage, UserMessage
from rove.core.records import ErrorInfo, RolloutRecord, Scores, StepTokens, TrajectoryStep
from rove.doctor.rollouts import (
    Lengths,
    check_advantages,
    check_context,
    check_failures,
    check_format,
    check_history,
    check_reward,
    check_samples,
    check_tokens,
    check_truncation,
    first_prompts,
    lengths_of,
)
from rove.models.from_scratch import CHAT_TEMPLATE
from rove.rendering.renderer import Renderer

TURNS = [StepTokens([1, 2], [7, 8], [-0.1, -0.2]), StepTokens([1, 2, 7, 8, 3], [9], [-0.3])]
FORKED = [TURNS[0], StepTokens([1, 2, 3], [9], [-0.3])]
TEMPLATE_WITHOUT_EARLIER_THOUGHTS = (  # omits the thoughts of earlier turns, like Qwen3
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_group(*rewards: float, key: str = "a", **scores: float) -> list[RolloutRecord]:
    records = [make_rollout(TURNS, reward, key, index) for index, reward in enumerate(rewards)]
    functions = {name: {name: value} for name, value in scores.items()}
    return [
        msgspec.structs.replace(
            r, scores=Scores(r.reward or 0.0, {"right": 0.0, **functions.get("format", {})}, {"right": 1.0})
        )
        for r in records
    ]


def failed_rollout() -> RolloutRecord:
    return make_rollout(reward=None, error=ErrorInfo("env_response", "ValueError", "no board"))


def test_check_failures():
    without_failures = make_group(0, 1)
    assert check_failures(without_failures).severity == OK
    assert check_failures([*without_failures, failed_rollout()]).severity == MEDIUM
    finding = check_failures([failed_rollout()])
    assert finding.severity == HIGH
    assert "env_response: ValueError: no board" in repr(finding)


@each_row(
    ("rewards", "status"),
    [([0, 0, 0, 1], OK), ([0, 0, 0, 0], HIGH), ([-0.1, -0.1], HIGH), ([-0.9, -0.1], OK), ([1, 1, 1, 0.9], MEDIUM)],
)
def test_check_reward(rewards: list[float], status: str):
    assert check_reward(make_group(*rewards)).severity == status


def test_check_advantages():
    zero_advantage = [record for key in "bcd" for record in make_group(0, 0, key=key)]
    assert check_advantages(make_group(0, 1)).severity == OK
    assert check_advantages(zero_advantage).severity == HIGH
    finding = check_advantages([*make_group(0, 1), *zero_advantage])
    assert (finding.severity, finding.text) == (
        MEDIUM,
        "3 of 4 groups have zero advantage: a step trains on 25% of its groups",
    )
    assert "25%" in repr(finding)


def test_check_format():
    assert check_format(make_group(0, 1, format=0.9)).severity == OK
    assert check_format(make_group(0, 1, format=0.1)).severity == MEDIUM
    assert check_format(make_group(0, 1)).severity == SKIPPED


@each_row(
    ("name", "is_format"),
    [
        ("strict_format", True),
        ("formatReward", True),
        ("informativeness", False),
        ("format_errors", False),
        ("invalid_format", False),
    ],
)
def test_names_of_format_rewards(name: str, is_format: bool):
    [record] = make_group(1)
    record = msgspec.structs.replace(record, scores=Scores(1.0, {name: 0.9}, {name: 1.0}))
    assert check_format([record]).severity == (OK if is_format else SKIPPED)


def test_the_best_policy_counts_as_good_although_its_reward_is_negative():
    findings = check_samples(make_group(0, 1), make_group(-1.0), Renderer(bpe_tokenizer()), 1, 100)
    assert any("a scripted policy needs 2" in finding.text for finding in findings)


def truncate(record: RolloutRecord) -> RolloutRecord:
    steps = [msgspec.structs.replace(step, finish_reason="length") for step in record.steps]
    return msgspec.structs.replace(record, steps=steps)


def test_check_truncation():
    complete = make_group(0, 1)
    assert check_truncation(complete, Lengths(), 32).severity == OK
    assert check_truncation([truncate(record) for record in complete], Lengths(), 32).severity == MEDIUM
    finding = check_truncation(complete, Lengths(100, 40, 5), 32)
    assert (finding.severity, finding.remedy) == (MEDIUM, "-t 60") and "policy needs 40" in finding.text


@each_row(
    ("sampled", "scripted", "status"),
    [
        (Lengths(60, 9, 10), Lengths(), OK),
        (Lengths(60, 9, 10), Lengths(90, 9, 10), MEDIUM),
        (Lengths(68, 9, 68), Lengths(), OK),
        (Lengths(70, 9, 69), Lengths(), HIGH),
        (Lengths(), Lengths(300, 9, 200), HIGH),
        (Lengths(), Lengths(), SKIPPED),
    ],
)
def test_check_context(sampled: Lengths, scripted: Lengths, status: str):
    assert check_context(sampled, scripted, 32, 100).severity == status


def conversation() -> RolloutRecord:
    messages: Any = [AssistantMessage("<think>x</think>4"), UserMessage("0 1"), AssistantMessage("<think>y</think>5")]
    steps = [
        TrajectoryStep([UserMessage("2")], messages[:1]),
        TrajectoryStep([UserMessage("2"), *messages[:2]], messages[2:]),
    ]
    return make_rollout(prompt=[UserMessage("2")], completion=messages, steps=steps)


def test_check_history_warns_about_templates_that_rewrite_history():
    tokenizer = bpe_tokenizer()
    plain = Renderer(tokenizer)
    assert check_history(make_group(0, 1), [conversation()], plain).severity == OK
    assert check_history([make_rollout(FORKED)], [], plain).severity == MEDIUM
    assert check_history([make_rollout(TURNS[:1])], [], plain).severity == SKIPPED
    tokenizer.chat_template = TEMPLATE_WITHOUT_EARLIER_THOUGHTS
    assert check_history([], [conversation()], Renderer(tokenizer)).severity == MEDIUM
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert "rejects messages" in check_history([], [conversation()], Renderer(tokenizer)).text


def test_check_tokens():
    assert check_tokens(make_group(0, 1)).severity == OK
    assert check_tokens([make_rollout([None])]).severity == HIGH
    assert check_tokens([make_rollout([StepTokens([1], [2], [])])]).severity == HIGH
    assert check_tokens([make_rollout([StepTokens([1], [2], [float("nan")])])]).severity == HIGH
    assert check_tokens([]).severity == SKIPPED


def test_the_first_prompts_include_the_tools():
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    rows = [{"question": "1 + 1?", "answer": "2"}]
    without, with_tools = (
        first_prompts(env, Renderer(tokenizer)).prompt
        for env in (rove.SingleTurnEnv(dataset=rows), rove.ToolEnv(dataset=rows, tools=[add]))
    )
    assert with_tools > without + len(tokenizer.encode("Add two numbers."))


def test_lengths_of():
    renderer = Renderer(bpe_tokenizer())
    assert lengths_of(make_group(0, 1), renderer) == Lengths(5, 2, 2)
    steps = conversation().steps
    longest = len(renderer.prompt_ids(steps[1].prompt))
    first = len(renderer.prompt_ids(steps[0].prompt))
    assert lengths_of([conversation()], renderer) == Lengths(
        longest, len(renderer.encode("<think>x</think>4")) + 1, first
    )
    assert lengths_of([], renderer) == Lengths()
    renderer.tokenizer.chat_template = "{{ raise_exception('no') }}"  # pyright: ignore[reportAttributeAccessIssue]
    assert lengths_of([conversation()], renderer) == Lengths()


def test_check_samples_runs_all_checks():
    findings = {finding.id: finding for finding in check_samples(make_group(0, 1), [], tiny_model().renderer, 32, 1024)}
    names = ("rollouts", "base_reward", "zero_advantage_groups", "max_tokens", "context", "history", "tokens")
    assert {findings[name].severity for name in names} == {OK}
    assert [finding.id for finding in check_samples([failed_rollout()], [], tiny_model().renderer, 32, 1024)][:2] == [
        "rollouts",
        "max_tokens",
    ]
