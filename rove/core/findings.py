"""Findings: whatever says "something is wrong". One type, one registry of ids, one way to write a finding as a line or as JSON.

The auditor, the doctor, the alerts and diagnoses of training, the check of packages and the warnings of commands all return them.
`docs/findings.md` has a section per id.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import total_ordering
from typing import Any, NamedTuple, cast

import msgspec


@total_ordering
class Severity(Enum):
    """How much a finding matters; from the lowest to the highest."""

    OK = "ok"
    """Checked, and good."""
    SKIPPED = "skipped"
    """Not checked, or not applicable."""
    INFO = "info"
    """A property that explains figures."""
    LOW = "low"
    """May mislead people who read results, or waste time."""
    MEDIUM = "medium"
    """Distorts rewards or results, or makes training worse."""
    HIGH = "high"
    """Reward without the task, wrong grading, damage, or certain failure."""

    def __lt__(self, other: Severity) -> bool:
        order = list(Severity)
        return order.index(self) < order.index(other)


OK, SKIPPED, INFO, LOW, MEDIUM, HIGH = Severity


class FindingInfo(NamedTuple):
    """What is known of all findings with the same id."""

    title: str
    """What is wrong, in general."""
    severity: Severity
    """Severity, unless a finding states another one."""
    cause: str
    """The usual cause."""
    remedy: str
    """The usual remedy."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is wrong, or a check that passed (severity OK) or was left out (SKIPPED).

    Args:
        id: Key of `FINDINGS`, and anchor in docs/findings.md.
        text: What was seen, with figures.
        severity: Default: that of the id.
        remedy: What to do. Default: that of the id, for findings above SKIPPED.
        cause: The likely cause. Default: that of the id, for findings above SKIPPED.
    """

    id: str
    text: str
    severity: Severity = cast("Severity", None)  # __post_init__ replaces it
    remedy: str = ""
    cause: str = ""
    step: int | None = None
    """Training step."""
    rate: tuple[float, float, float] | None = None
    """Mean reward of the evidence with its 95% interval, or a share of rows."""
    floor: float | None = None
    """What the rate is compared with."""
    prompt: str = ""
    """Last message before the completion that shows the problem."""
    completion: str = ""
    """The response that shows the problem."""

    def __post_init__(self) -> None:
        info = FINDINGS[self.id]
        if cast("Severity | None", self.severity) is None:
            msgspec.structs.force_setattr(self, "severity", info.severity)
        if self.severity > SKIPPED:
            msgspec.structs.force_setattr(self, "remedy", self.remedy or info.remedy)
            msgspec.structs.force_setattr(self, "cause", self.cause or info.cause)

    def __str__(self) -> str:
        """Return the finding as one line: id, what was seen, and what to do."""
        return f"{self.id}: {self.text}" + (f". To try: {self.remedy}" if self.remedy else "")


AUDIT = {
    "load": FindingInfo(
        "the environment does not load or has no rows, every rollout fails, or the time is used up before the first check",
        HIGH,
        "an error in load_environment, in the dataset or in a reward function",
        "fix the error, or allow more time",
    ),
    "blind-reply": FindingInfo(
        "replies written without seeing the answer earn more than chance, or wrong answers earn nearly the full reward",
        HIGH,
        "the grader accepts a part of the reply, or values that equal everything, such as nan",
        "compare the parsed answer with the row's answer; reward nothing else",
    ),
    "hedging": FindingInfo(
        "several answers, a retracted answer, or an answer outside its required place earn the full reward",
        HIGH,
        "the grader searches the whole reply for the answer",
        "parse exactly one answer, and compare all of it",
    ),
    "own-answer": FindingInfo(
        "the row's own answer does not earn the full reward",
        MEDIUM,
        "the grader normalizes the reply and the row's answer differently, or rows are wrong",
        "normalize both sides in the same way, or correct the rows",
    ),
    "monotonicity": FindingInfo(
        "wrong variants of the answer earn as much as the right one",
        HIGH,
        "the grader compares only a part of the answer, or with too large a tolerance",
        "compare whole values, including sign, unit and length",
    ),
    "grader-robustness": FindingInfo(
        "replies make the grader raise an exception, hang, or return a value that is not a finite number",
        MEDIUM,
        "the grader expects that every reply can be parsed",
        "return the lowest reward for such replies",
    ),
    "execution": FindingInfo(
        "replies are executed as code in the grader's process",
        HIGH,
        "the grader calls eval or exec on a reply",
        "parse with ast.literal_eval or json, or run code in a sandbox (SandboxEnv)",
    ),
    "judge-injection": FindingInfo(
        "a reply can inject instructions into the judge",
        HIGH,
        "the judge's prompt does not separate the reply from its own instructions",
        "mark where the reply begins and ends in the judge's prompt, and instruct the judge to ignore instructions in it",
    ),
    "determinism": FindingInfo(
        "the same reply gets different rewards, or another process gets different rows; not done if a judge decides",
        MEDIUM,
        "random numbers without a seed, the order of a set, or state that rollouts share",
        "draw random numbers from the rollout's generator, sort sets, and keep no state between rollouts",
    ),
    "row-round-trip": FindingInfo(
        "rows change when they are written as JSON and read again",
        MEDIUM,
        "rows hold tuples, sets, or dicts whose keys are not strings",
        "use only lists, strings, numbers, booleans, None and dicts with string keys",
    ),
    "data-overlap": FindingInfo(
        "evaluation rows are equal or nearly equal to training rows",
        MEDIUM,
        "both datasets are sampled from the same rows",
        "split by content before sampling rows",
    ),
    "seed-shift": FindingInfo(
        "two seeds share most of their rows",
        HIGH,
        "the generator of a row is seeded with the sum of the seed and the index",
        "derive each row's generator from the seed and the index together, not from their sum",
    ),
    "answer-leak": FindingInfo(
        "the answer is in prompts, tools, or messages to a policy that does nothing",
        HIGH,
        "texts for the model are made from a row that also holds the answer",
        "remove it from prompts, tools and messages",
    ),
    "parser-agreement": FindingInfo(
        "the environment's parser reads a different answer than the one that the grader rewards",
        MEDIUM,
        "the grader reads replies with code of its own",
        "let the grader use the environment's parser",
    ),
    "blind-game": FindingInfo(
        "policies that ignore observations earn rewards in a game or with tools",
        HIGH,
        "single actions or long games are rewarded, whatever their result",
        "reward the result of the game only, and end it after invalid actions",
    ),
    "policy-search": FindingInfo(
        "a small search over replies finds one that earns more than chance on rows that were not used in the search",
        HIGH,
        "the grader has a hole that no other check tries",
        "read the reply that was found",
    ),
    "learned-reward": FindingInfo(
        "with --learn: a tiny model raises its reward by RL without doing the task",
        HIGH,
        "the reward depends on something that is easier to learn than the task",
        "read the reply that it has learned; reward only what the task demands",
    ),
    "reward-statistics": FindingInfo(
        "all rewards are equal, are outside the range that the weights allow, or are never near the maximum",
        MEDIUM,
        "a reward function does not depend on the reply, or its values do not fit its weight",
        "reward better replies more; correct the weights or the documented range",
    ),
    "length": FindingInfo(
        "an answer, right or wrong, earns more if more words precede it",
        MEDIUM,
        "a reward function counts words, lines or steps",
        "do not reward length",
    ),
    "side-effects": FindingInfo(
        "rollouts write files, start processes or open network connections",
        MEDIUM,
        "a tool or a reward function works outside of its rollout",
        "use a temporary folder and a cleanup method, or a sandbox",
    ),
}
"""Findings of `rove audit`, in the order of its checks. Ids never change."""

TRAINING = {
    "policy_collapse": FindingInfo(
        "one update was far too large: the model repeats itself, or gets no reward any more",
        HIGH,
        "the learning rate is too high",
        "start again (--overwrite) with a tenth of the learning rate or less; rove doctor estimates which ones work",
    ),
    "loss_growth": FindingInfo(
        "the loss of SFT grows",
        HIGH,
        "the learning rate is too high, or the warm-up too short",
        "start again (--overwrite) with a tenth of the learning rate, or more warmup_steps",
    ),
    "entropy_collapse": FindingInfo(
        "the model hardly explores any more",
        MEDIUM,
        "updates are too large for the bonus that keeps entropy up; normal once the reward is at its maximum",
        "lower the learning rate, or raise entropy_bonus or the temperature",
    ),
    "entropy_growth": FindingInfo(
        "the output becomes random",
        MEDIUM,
        "the entropy bonus, the learning rate or the temperature is too high, or the model is too weak for RL",
        "lower entropy_bonus, the learning rate or the temperature, or train the model longer with SFT first",
    ),
    "ratio_drift": FindingInfo(
        "the trained weights differ from the sampling weights",
        MEDIUM,
        "rollouts were sampled with other weights or another temperature than training assumes",
        "set max_off_policy_steps to 0; compare a run in bf16 with one in fp32",
    ),
    "logprob_mismatch": FindingInfo(
        "the sampler and the trainer compute different log-probabilities for the sampled tokens",
        MEDIUM,
        "a sampler with stale weights, coarser numbers, or a truncated distribution (top_p, top_k)",
        "use fp32, the newest weights, and no top_p or top_k: importance ratios are wrong from the first step",
    ),
    "length_growth": FindingInfo(
        "responses become longer and longer",
        MEDIUM,
        "the reward favors length",
        "check whether the reward favors length itself",
    ),
    "zero_advantage_groups": FindingInfo(
        "many groups have equal rewards, and no effect on training",
        MEDIUM,
        "examples are too easy or too hard, or the replies of a group have become the same",
        "change the mix of examples, skip them (hard_threshold, easy_threshold), or fill the batch (dynamic_sampling_rounds)",
    ),
    "format_drift": FindingInfo(
        "the model stops following the required format",
        MEDIUM,
        "other rewards pay more than the format, or updates are too large",
        "give the format more weight, or lower the learning rate",
    ),
    "held_out_flat": FindingInfo(
        "the reward rises on training examples only",
        MEDIUM,
        "memorized examples, or reward hacking",
        "look for memorized examples, or for reward hacking (rove view, rove audit)",
    ),
    "trainer_idle": FindingInfo(
        "the trainer waits for rollouts most of the time",
        LOW,
        "sampling takes longer than training",
        "more samplers, or faster environments, save time; a faster trainer does not",
    ),
    "sampler_idle": FindingInfo(
        "the sampler waits most of the time",
        LOW,
        "the trainer is slower than sampling",
        "a faster trainer saves time; more samplers do not",
    ),
    "grad_norm_spike": FindingInfo(
        "one gradient is much larger than the others",
        LOW,
        "an unusual batch, or a learning rate that is too high",
        "if this repeats, lower the learning rate or look at the rollouts of this step",
    ),
}
"""Alerts and other findings of training runs."""

DIAGNOSES = {
    "reward_error": FindingInfo(
        "rollouts fail before training starts",
        HIGH,
        "the environment or a reward function raises an exception",
        "fix the environment",
    ),
    "no_spread": FindingInfo(
        "all rewards are equal, from the beginning or because the replies of a group have become the same",
        HIGH,
        "examples are much too easy or too hard, or SFT has made the model too certain",
        "make examples easier or rewards finer, or run more SFT before RL",
    ),
    "no_progress": FindingInfo(
        "RL is no better than the weakest policy, and most groups have equal rewards",
        MEDIUM,
        "RL starts from a model that is too weak",
        "teach more of the task in SFT before RL, or make examples easier",
    ),
    "hidden_state": FindingInfo(
        "the scripted policy uses information that is not in the conversation",
        HIGH,
        "neither the prompt nor env_response shows a part of the state",
        "show everything that the policy uses in the prompt or in env_response",
    ),
    "learning_rate": FindingInfo(
        "the learning rate does not suit the model: SFT does not even learn the format, or the reward of RL falls at once",
        HIGH,
        "updates are too large, or the loss is still falling",
        "lower sft.learning_rate to a tenth, or train longer if the loss is still falling",
    ),
    "merged_tokens": FindingInfo(
        'some tokens contain several symbols, such as "RGB", which the model cannot see',
        MEDIUM,
        "the tokenizer of a new model turns frequent combinations into one token",
        "write the symbols with spaces between them, or use a tokenizer that spells them (model.word_share = 1.0)",
    ),
    "unpredictable": FindingInfo(
        "no token in the prompts is related to the responses, or the model memorizes the training data",
        HIGH,
        "answers belong to other questions, or the prompt does not determine the answer",
        "check that answers belong to their questions, and that the prompt determines the answer. If the answer takes several "
        "words of the prompt at once, as a sum does, train longer, with more data or a larger model",
    ),
    "guessing": FindingInfo(
        "the model has learned only the format",
        MEDIUM,
        "too few steps, too little data, or a model that is too small",
        'train longer (sft.epochs), with more data, or with a larger model (model.size = "small")',
    ),
    "unfinished": FindingInfo(
        "after all steps of SFT, the reward is near that of the weakest policy, or has stopped rising below sft.target",
        MEDIUM,
        "too few steps, or examples that are too hard for this model",
        "train longer (sft.epochs), with more data, or with a larger model",
    ),
    "memorized": FindingInfo(
        "the model does much better on training examples than on held-out ones",
        MEDIUM,
        "training examples repeat, or held-out answers occur in no training response",
        "use more different training examples: a larger num_examples if the environment makes new ones, else more data in it",
    ),
    "collapse": FindingInfo(
        "the reward of RL falls slowly over the course of training",
        HIGH,
        "the learning rate or the entropy bonus is too high",
        "lower rl.learning_rate to a third, and rl.loss.entropy_bonus if the entropy has risen",
    ),
    "saturated": FindingInfo(
        "the reward is near its maximum when RL begins",
        LOW,
        "the model can do the task already",
        "stop here, or make the examples harder",
    ),
}
"""Reasons why a stage of `rove train` does not improve the model."""

FINDINGS: dict[str, FindingInfo] = {**AUDIT, **TRAINING, **DIAGNOSES}
"""Id → what is known of it."""
EARLIER_KEYS = {"check": "id", "name": "id", "kind": "id", "fix": "remedy", "advice": "remedy"}


def current_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finding in a file with its current keys.

    Reports, `alerts.jsonl`, `diagnoses.json` and `evidence.json` of rove before its findings had one type call the id "check",
    "name" or "kind", and the remedy "fix" or "advice".
    """
    return {EARLIER_KEYS.get(key, key): value for key, value in row.items()}
