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

PACKAGES = {
    "api_difference": FindingInfo(
        "the package uses a part of verifiers that works differently in rove",
        INFO,
        "rove corrects a fault of verifiers, or the package is written for an older version of it",
        "read the row of docs/compat.md; most packages need no change",
    ),
}
"""Packages for verifiers: `rove check`."""

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
    "flat_reward": FindingInfo(
        "the reward has not measurably increased in a run of at least 20 steps",
        MEDIUM,
        "too few steps or rollouts, a learning rate that is too low or too high, or a reward that was at its maximum",
        "more steps, a larger batch or another learning rate; rove doctor looks for other causes",
    ),
    "worse_since_best": FindingInfo(
        "the reward or the loss has become worse since its best step",
        MEDIUM,
        "the learning rate is too high, or the model memorizes training examples",
        "keep the best weights (keep_best), or lower the learning rate",
    ),
    "format_gain": FindingInfo(
        "more than half of the rise of the reward is format",
        LOW,
        "the format is easier to learn than the task",
        "train longer, or give the format less weight",
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

SETTINGS = {
    "settings": FindingInfo(
        "the settings of the run are invalid",
        HIGH,
        "a value is out of range, or two settings exclude each other",
        "change the setting, which rove rl refuses",
    ),
    "batch": FindingInfo(
        "a step has fewer than 256 rollouts", MEDIUM, "gradients of small batches are noisy", "--batch-size 256 or more"
    ),
    "groups": FindingInfo(
        "groups have fewer than 4 members, or a step has fewer than 8 groups",
        MEDIUM,
        "batch_size and rollouts_per_example do not fit together",
        "raise --batch-size to 8 groups or more, of 8 members each (-r 8)",
    ),
    "num_groups": FindingInfo(
        "steps contain some difficulties more often than others",
        MEDIUM,
        "the number of groups in a step is not a multiple of the environment's num_groups",
        "choose --batch-size and num_groups so that num_groups divides the groups of a step",
    ),
    "sampling": FindingInfo(
        "the sampling temperature is above 1.25 or below 0.7",
        MEDIUM,
        "policies collapse at 1.4; at low temperatures, group members become similar and entropy falls",
        "-T 1, or at most 1.25 with large batches",
    ),
    "schedule": FindingInfo(
        "the warm-up, the checkpoints or the entropy bonus do not fit the number of steps",
        MEDIUM,
        "settings of a longer run",
        "lower warmup_steps, checkpoint_every or loss.entropy_bonus",
    ),
    "adapter": FindingInfo(
        "the adapter that is trained is not the policy that is sampled",
        MEDIUM,
        "rollouts are sampled without dropout, so importance ratios are wrong from the first step",
        "--lora.dropout 0",
    ),
    "dataset": FindingInfo(
        "there are too few different examples",
        MEDIUM,
        "most rows are duplicates, or there are fewer rows than groups in a step",
        "add different rows, or use fewer groups: the model memorizes rows that repeat",
    ),
    "held_out": FindingInfo(
        "evaluation rows are also training rows, so the evaluation measures memorization",
        MEDIUM,
        "both come from the same dataset, or the environment has no eval_dataset",
        "give the environment an eval_dataset, or the evaluation other env_args (a seed)",
    ),
    "environment_sampling": FindingInfo(
        "the environment sets top_p, top_k or min_p, which rove rl ignores",
        MEDIUM,
        "the trainer only accounts for the temperature",
        "evaluate without them too",
    ),
    "model": FindingInfo(
        "the model cannot be trained",
        HIGH,
        "it is a scripted policy or an endpoint, whose weights are not available, or its files are damaged",
        "give a model folder: create a model (rove model new), and train it on rollouts (rove sft)",
    ),
    "environment": FindingInfo(
        "the environment does not load",
        HIGH,
        "its code raises an exception",
        "rove eval shows the traceback",
    ),
    "sandbox": FindingInfo(
        "this machine cannot enforce all limits of the environment's sandbox",
        MEDIUM,
        "namespaces, control groups or system call filters are not available",
        "see docs/sandbox.md",
    ),
    "samples": FindingInfo(
        "nothing was sampled, so that rewards, lengths, time and tokens are unknown", INFO, "--quick", "omit --quick"
    ),
}
"""Settings and examples of an RL run: `rove doctor` checks all of them, `rove rl` and `rove sft` some before they start."""

SAMPLES = {
    "rollouts": FindingInfo(
        "rollouts fail",
        MEDIUM,
        "the environment or a reward function raises an exception",
        "read the errors with rove eval; failed rollouts are left out of their group, and rove rl stops if all fail",
    ),
    "base_reward": FindingInfo(
        "the model earns nothing, or nearly everything, before training",
        MEDIUM,
        "the model does not know the format or the task yet, or the examples are too easy",
        "warm up first: rove sft on good rollouts (of a scripted policy, or a larger model), or start with easier examples",
    ),
    "format": FindingInfo(
        "most responses cannot be parsed",
        MEDIUM,
        "the model does not know the format yet",
        "warm up first: rove sft on good rollouts (of a scripted policy, or a larger model)",
    ),
    "max_tokens": FindingInfo(
        "responses are truncated",
        MEDIUM,
        "max_tokens is too low, or the model rambles",
        "raise -t, or warm up with rove sft if the model rambles. --truncated sets how they are scored",
    ),
    "context": FindingInfo(
        "prompts leave no room for a response of max_tokens",
        MEDIUM,
        "the model's context is too short for this environment",
        "lower -t or the number of turns, or use a model with a larger context",
    ),
    "history": FindingInfo(
        "a turn's prompt does not extend the turn before it",
        MEDIUM,
        "the chat template rewrites earlier turns, for example drops <think>",
        "use a chat template that only appends",
    ),
    "tokens": FindingInfo(
        "responses have no tokens, or no valid log-probabilities",
        HIGH,
        "they are not responses of the embedded engine, or weights are NaN",
        "sample with the embedded engine, or try another checkpoint",
    ),
    "micro_batch": FindingInfo(
        "a forward and backward pass over one micro-batch fails",
        HIGH,
        "usually too little memory",
        "lower --micro-batch-tokens, or use another model",
    ),
    "memory": FindingInfo(
        "a run needs more memory than is free",
        MEDIUM,
        "the weights, the optimizer and a micro-batch are too large for this machine",
        "lower --micro-batch-tokens, or use --activation-checkpointing, --lora.rank 8, a smaller model or a larger machine",
    ),
    "disk": FindingInfo(
        "a run needs more disk space than is free",
        MEDIUM,
        "checkpoints hold the weights and the state of the optimizer",
        "use --keep-checkpoints 1 or another --run-dir, or free some space",
    ),
    "time": FindingInfo(
        "a run takes more than a day, or an hour between checkpoints",
        MEDIUM,
        "long rollouts, or a model that is large for this machine",
        "lower --steps, or use shorter rollouts, a smaller model or a faster machine",
    ),
}
"""A few sampled groups, one micro-batch and this machine: `rove doctor` for an RL run."""

ENDPOINT = {
    "reachable": FindingInfo("no server answers", HIGH, "no server listens at this address", "check -b"),
    "key": FindingInfo(
        "the server does not accept the key",
        HIGH,
        "the key is missing, or of another server",
        "set the variable of -k to a key of this server; see its account page",
    ),
    "models": FindingInfo(
        "the model is not in the server's list of models",
        MEDIUM,
        "a typing error in the name",
        "give a name from the list",
    ),
    "response": FindingInfo(
        "a short question gets no complete answer with text",
        HIGH,
        "a wrong name or base URL, a chat template that does not fit, or too few tokens",
        "check the name of the model, the base URL (…/v1) and the server's log",
    ),
    "tools": FindingInfo(
        "the model does not call a tool when it should",
        MEDIUM,
        "the server does not parse tool calls, or the model does not know them",
        "vLLM: --enable-auto-tool-choice --tool-call-parser …; or use a model whose chat template supports tools",
    ),
    "logprobs": FindingInfo(
        "the server returns no log-probabilities of tokens, or invalid ones",
        MEDIUM,
        "the API has none",
        "evaluation needs none; for training, use the embedded engine or vLLM",
    ),
    "temperature_0": FindingInfo(
        "the same request at temperature 0 gets different responses",
        MEDIUM,
        "batched kernels round differently",
        "use more rollouts, since runs are not repeatable",
    ),
    "seed": FindingInfo(
        "the same request with a seed gets different responses",
        MEDIUM,
        "the server ignores seeds",
        "keep the run folder: rollouts cannot be sampled again, but rove saves them",
    ),
    "streaming": FindingInfo(
        "responses are not streamed",
        MEDIUM,
        "the server does not support it",
        "nothing: rove does not need streaming for evaluation and training",
    ),
    "latency": FindingInfo(
        "a few tokens take more than 30 seconds",
        MEDIUM,
        "the server is overloaded or far away",
        "raise -c if the server has capacity, else use a nearer or larger server",
    ),
    "other_checks": FindingInfo(
        "the other checks were left out",
        INFO,
        "the server does not respond, or too slowly",
        "run rove doctor again when the server responds",
    ),
}
"""An endpoint or a model folder: `rove doctor -m MODEL`."""

FINDINGS: dict[str, FindingInfo] = {**AUDIT, **SETTINGS, **SAMPLES, **ENDPOINT, **PACKAGES, **TRAINING, **DIAGNOSES}
"""Id → what is known of it."""
EARLIER_KEYS = {"check": "id", "name": "id", "kind": "id", "fix": "remedy", "advice": "remedy"}


def current_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finding in a file with its current keys.

    Reports, `alerts.jsonl`, `diagnoses.json` and `evidence.json` of rove before its findings had one type call the id "check",
    "name" or "kind", and the remedy "fix" or "advice".
    """
    return {EARLIER_KEYS.get(key, key): value for key, value in row.items()}
