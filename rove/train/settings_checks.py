"""Checks of the settings and examples of an RL run: `rove rl` prints only problems; `rove doctor` prints the result of every
check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rove.core.errors import ConfigError
from rove.core.findings import HIGH, MEDIUM, OK, Finding
from rove.envs.environment import Environment
from rove.train.config import LoRAConfig, RLConfig
from rove.train.contamination import MAX_ROWS, Overlap, find_overlaps, trained_keys
from rove.utils.units import counted

MIN_BATCH, TINY_BATCH = 256, 64
"""Numbers of rollouts per step: below `MIN_BATCH`, training is noisy; below `TINY_BATCH`, it often collapses."""
MIN_GROUPS = 8
"""Number of groups per step below which the mean reward says little about the dataset."""
FEW_STEPS = 20
"""Number of steps below which small batches get no warning: training that collapses does so later."""
MIN_GROUP_SIZE = 4
MAX_TEMPERATURE, MIN_TEMPERATURE = 1.25, 0.7
"""Range of sampling temperatures: above it, policies may collapse (seen at 1.4); below it, group members are too similar."""
LARGE_BONUS = 0.1
"""An entropy bonus of this size destroyed a tiny policy, but 0.01 to 0.03 helped."""
LEARNING_RATES = ((20e6, (1e-4, 1e-3)), (200e6, (1e-5, 5e-5)), (float("inf"), (1e-6, 5e-6)))
"""Pairs (upper bound of the parameter count, range of learning rates that worked for full training)."""
LORA_RATE_FACTOR = 10
"""Factor between the learning rates of an adapter and of full training."""
MAX_ADAPTER_FRACTION = 0.2
"""If less than this fraction of the parameters is trained, the model is taken to have an adapter."""
RATE_TOLERANCE = 2.0
"""Rates outside the working range by more than this factor get a warning."""
MAX_LEARNING_RATE = 1e-2
"""Maximum learning rate: AdamW changes every weight by about the learning rate per step, and weights are a few hundredths in
size."""
BIASED = ("top_p", "top_k", "min_p")
"""Sampling parameters that the trainer ignores when it computes probabilities."""


def start_warnings(config: RLConfig, env: Environment) -> list[Finding]:
    """Return the warnings of `rove rl` before its first step."""
    findings = list(check_settings(config))
    if config.evaluation:
        trained = trained_keys(config, env)
        findings += check_held_out(_overlaps(config, trained), len(trained))
    return [finding for finding in findings if finding.severity > OK]


def check_settings(config: RLConfig) -> Iterator[Finding]:
    """Yield findings that need neither model nor environment."""
    try:
        config.check()
        yield Finding("settings", "valid", OK)
    except ConfigError as error:
        yield Finding("settings", str(error))
        return
    yield check_batch(config.batch_size, config.steps)
    yield check_groups(config)
    is_usual = MIN_TEMPERATURE <= config.temperature <= MAX_TEMPERATURE
    yield Finding("sampling", f"temperature {config.temperature:g}", OK if is_usual else MEDIUM)
    yield check_schedule(config.steps, config.warmup_steps, config.checkpoint_every, config.loss.entropy_bonus)
    if config.lora.rank:
        yield check_adapter(config.lora)


def check_batch(batch_size: int, steps: int) -> Finding:
    """Check whether a step has enough rollouts."""
    text = f"{batch_size} rollouts per step"
    if steps < FEW_STEPS:
        return Finding("batch", f"{text}, in {counted(steps, 'step')}", OK)
    if batch_size < TINY_BATCH:
        return Finding("batch", f"{text}, with which training often collapses")
    return Finding("batch", text, OK if batch_size >= MIN_BATCH else MEDIUM)


def check_groups(config: RLConfig) -> Finding:
    """Check the size and number of groups."""
    groups, size = config.groups, config.rollouts_per_example
    text = f"{groups} groups of {size}"
    if size < MIN_GROUP_SIZE:
        text += "; small groups often have equal rewards and teach nothing"
        return Finding("groups", text, remedy="rollouts_per_example 8")
    if groups < MIN_GROUPS and config.steps >= FEW_STEPS:
        return Finding("groups", f"{text}; a step has few examples")
    return Finding("groups", text, OK)


def check_schedule(steps: int, warmup_steps: int, checkpoint_every: int, entropy_bonus: float) -> Finding:
    """Check warm-up, checkpoints and the entropy bonus."""
    text = f"{steps} steps, {warmup_steps} of warm-up, entropy bonus {entropy_bonus:g}"
    if entropy_bonus >= LARGE_BONUS:
        text += "; a bonus this large destroyed a tiny policy"
        return Finding("schedule", text, remedy="loss.entropy_bonus 0 to 0.03")
    if warmup_steps >= steps:
        text += "; the learning rate never reaches its peak"
        return Finding("schedule", text, remedy="raise steps or lower warmup_steps")
    if checkpoint_every >= steps > 10:
        return Finding("schedule", f"{text}; no checkpoint before the end", remedy="lower checkpoint_every")
    return Finding("schedule", text, OK)


def check_adapter(lora: LoRAConfig) -> Finding:
    """Check whether the sampled policy is the same as the trained adapter."""
    # With dropout, the policy that RL trains is not the policy that samples.
    targets = ", ".join(lora.targets) or "all linear layers"
    text = f"rank {lora.rank}, alpha {lora.alpha:g}, {targets}"
    if lora.dropout:
        return Finding("adapter", f"{text}, dropout {lora.dropout:g}")
    return Finding("adapter", text, OK)


def check_environment(config: RLConfig, env: Environment) -> Iterator[Finding]:
    """Yield findings about the training and evaluation examples."""
    trained = trained_keys(config, env)
    yield check_dataset(config.groups, config.steps, env.count_examples(train=True), trained)
    yield from check_held_out(_overlaps(config, trained), len(trained))
    ignored = {name: value for name, value in env.sampling_args.items() if name in BIASED}
    if ignored:
        yield Finding("environment_sampling", ", ".join(f"{name}={value}" for name, value in ignored.items()))


def _overlaps(config: RLConfig, trained: Sequence[str]) -> list[Overlap]:
    return find_overlaps(config.evaluation, config.env_dir, set(trained), config.environment_isolation)


def check_dataset(groups: int, steps: int, rows: int | None, trained: Sequence[str]) -> Finding:
    """Check whether there are enough different examples.

    Args:
        groups: Number of groups per step.
        rows: Number of rows of the dataset; None if unknown.
        trained: Keys of the first training rows, at most `MAX_ROWS`; equal contents have equal keys.
    """
    different = len(set(trained))
    if not different:
        return Finding("dataset", "no rows to train on", HIGH, "give the environment a dataset")
    checked = len(trained)
    mostly_repeated = 2 * different < checked
    text = "rows generated on demand" if rows is None else f"{rows:,} rows"
    if checked != rows:
        text += f", the first {checked:,} checked" if checked == MAX_ROWS else f", {checked:,} of them used"
    if different < checked:
        only = "only " if mostly_repeated else ""
        text += f", {only}{different:,} different ones"
    if different < groups:
        return Finding("dataset", f"{text} for {groups} groups a step, which repeats examples")
    if checked < MAX_ROWS:
        text += f", each used {groups * steps / different:.2g} times"
    return Finding("dataset", text, MEDIUM if mostly_repeated else OK)


def check_held_out(overlaps: Sequence[Overlap], trained: int, remedy: str = "") -> Iterator[Finding]:
    """Check, for each evaluation, that its rows are not training rows.

    Args:
        trained: Number of training rows that were checked, at most `MAX_ROWS`.
        remedy: Advice on what to do; by default, the registry's advice.
    """
    for overlap in overlaps:
        if overlap.shared:
            yield Finding("held_out", f"evaluation {overlap}", remedy=remedy)
        else:
            limit = f" (of which {MAX_ROWS:,} were checked)" if trained == MAX_ROWS else ""
            text = f"{overlap.evaluation}: none of {overlap.measured:,} rows is a training row{limit}"
            yield Finding("held_out", text, OK)


def check_learning_rate(learning_rate: float, lora_rank: int, parameters: int, trained: int) -> Finding:
    """Check whether the learning rate suits the size of the model.

    Args:
        parameters: Number of parameters of the model, including an adapter.
        trained: Number of parameters that are trained.
    """
    is_adapter = trained < MAX_ADAPTER_FRACTION * parameters or lora_rank > 0
    # Larger models need smaller updates.
    low, high = next(rates for limit, rates in LEARNING_RATES if parameters < limit)
    if is_adapter:
        low, high = low * LORA_RATE_FACTOR, high * LORA_RATE_FACTOR
    kind = f"an adapter of {trained / 1e6:,.2g} M parameters on" if is_adapter else "all of"
    base = parameters - trained if is_adapter else parameters
    text = f"{learning_rate:g} for {kind} {base / 1e6:,.3g} M parameters; {low:g} to {high:g} worked"
    remedy = f"learning_rate {low:g} to {high:g}"
    highest = MAX_LEARNING_RATE * LORA_RATE_FACTOR if is_adapter else MAX_LEARNING_RATE
    if learning_rate > highest:
        return Finding("learning_rate", f"{text}, and the first step would destroy any model", HIGH, remedy)
    if learning_rate > RATE_TOLERANCE * high:
        return Finding("learning_rate", f"{text}, and policies collapse at rates this high", MEDIUM, remedy)
    if learning_rate < low / RATE_TOLERANCE:
        return Finding("learning_rate", f"{text}; this is slow", MEDIUM, remedy)
    return Finding("learning_rate", text, OK)


def check_model_name(model: str) -> Finding | None:
    """Return a finding if the model has no weights to train."""
    if model.startswith("scripted:"):
        return Finding("model", f"{model} is a scripted policy, which has no weights")
    return None
