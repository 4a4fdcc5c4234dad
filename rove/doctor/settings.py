"""Checks of the settings of an RL run that need no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rove.core.errors import ConfigError
from rove.doctor.findings import FAIL, OK, WARN, Finding
from rove.envs.environment import Environment
from rove.train.config import RLConfig
from rove.train.contamination import MAX_ROWS, Overlap, find_overlaps, trained_keys

MIN_BATCH, TINY_BATCH = 256, 64
"""Rollouts per step: below the first, training is noisy; below the second, it often collapses."""
MIN_GROUPS = 8
"""Groups per step below which the mean reward says little about the dataset."""
MIN_GROUP_SIZE = 4
MAX_TEMPERATURE, MIN_TEMPERATURE = 1.25, 0.7
"""Sampling temperatures: above the first, policies collapse (at 1.4); below the second, group members are too similar."""
LARGE_BONUS = 0.1
"""An entropy bonus that destroyed a tiny policy; 0.01 to 0.03 helped."""
LEARNING_RATES = ((20e6, (1e-4, 1e-3)), (200e6, (1e-5, 5e-5)), (float("inf"), (1e-6, 5e-6)))
"""Parameter count (upper bound) → learning rates that worked for full training."""
LORA_RATE_FACTOR = 10
"""Learning rate of an adapter relative to full training."""
MAX_ADAPTER_FRACTION = 0.2
"""If less than this fraction of the parameters is trained, the model has an adapter."""
RATE_TOLERANCE = 2.0
"""Rates outside the working range by more than this factor get a warning."""
MAX_LEARNING_RATE = 1e-2
"""AdamW changes every weight by about the learning rate per step, and weights are a few hundredths."""
BIASED = ("top_p", "top_k", "min_p")
"""Sampling parameters that the trainer's probabilities do not account for."""


def check_settings(config: RLConfig) -> Iterator[Finding]:
    """Yield findings that need neither model nor environment."""
    try:
        config.check()
        yield Finding(OK, "settings", "valid")
    except ConfigError as error:
        yield Finding(FAIL, "settings", str(error), "rove rl refuses this setting")
        return
    yield check_batch(config)
    yield check_groups(config)
    yield check_temperature(config)
    yield check_schedule(config)
    if config.lora.rank:
        yield check_adapter(config)


def check_batch(config: RLConfig) -> Finding:
    """Check whether a step has enough rollouts."""
    seen = f"{config.batch_size} rollouts per step"
    if config.batch_size < TINY_BATCH:
        return Finding(WARN, "batch", seen, f"training with so few often collapses: --batch-size {MIN_BATCH} or more")
    if config.batch_size < MIN_BATCH:
        return Finding(WARN, "batch", seen, f"noisy: --batch-size {MIN_BATCH} or more")
    return Finding(OK, "batch", seen)


def check_groups(config: RLConfig) -> Finding:
    """Check the size and number of groups, and whether every step contains each difficulty equally often."""
    size = config.rollouts_per_example
    groups, buckets = config.batch_size // size, config.env_args.get("num_groups", 1)
    seen = f"{groups} groups of {size}"
    if size < MIN_GROUP_SIZE:
        return Finding(WARN, "groups", seen, "small groups often have equal rewards and teach nothing: -r 8")
    if groups < MIN_GROUPS:
        return Finding(
            WARN, "groups", seen, f"a step has few examples: raise --batch-size to {MIN_GROUPS} groups or more"
        )
    if isinstance(buckets, int) and buckets > 0 and groups % buckets:
        advice = f"a multiple of num_groups ({buckets}) would contain each difficulty equally often"
        return Finding(WARN, "groups", seen, advice)
    return Finding(OK, "groups", seen)


def check_temperature(config: RLConfig) -> Finding:
    """Check whether the temperature allows exploration without collapse."""
    seen = f"temperature {config.temperature:g}"
    if config.temperature > MAX_TEMPERATURE:
        return Finding(WARN, "sampling", seen, "policies collapse at 1.4: -T 1, or at most 1.25 with large batches")
    if config.temperature < MIN_TEMPERATURE:
        return Finding(WARN, "sampling", seen, "group members become similar and entropy falls: -T 1")
    return Finding(OK, "sampling", seen)


def check_schedule(config: RLConfig) -> Finding:
    """Check warm-up, checkpoints and the entropy bonus."""
    seen = f"{config.steps} steps, {config.warmup_steps} of warm-up, entropy bonus {config.loss.entropy_bonus:g}"
    if config.loss.entropy_bonus >= LARGE_BONUS:
        return Finding(
            WARN,
            "schedule",
            seen,
            "an entropy bonus this large destroyed a tiny policy: --loss.entropy-bonus 0 to 0.03",
        )
    if config.warmup_steps >= config.steps:
        return Finding(
            WARN, "schedule", seen, "the learning rate never reaches its peak: raise --steps or lower --warmup_steps"
        )
    if config.checkpoint_every >= config.steps > 10:
        return Finding(WARN, "schedule", seen, "no checkpoint before the end: lower --checkpoint-every")
    return Finding(OK, "schedule", seen)


def check_adapter(config: RLConfig) -> Finding:
    """Check whether the adapter that is trained is the policy that is sampled."""
    seen = (
        f"rank {config.lora.rank}, alpha {config.lora.alpha:g}, {', '.join(config.lora.targets) or 'all linear layers'}"
    )
    if config.lora.dropout:
        advice = (
            "rollouts are sampled without dropout, so importance ratios are wrong from the first step: --lora.dropout 0"
        )
        return Finding(WARN, "adapter", f"{seen}, dropout {config.lora.dropout:g}", advice)
    return Finding(OK, "adapter", seen)


def check_environment(config: RLConfig, env: Environment) -> Iterator[Finding]:
    """Yield findings about the training and evaluation examples."""
    trained = trained_keys(config, env)
    yield check_dataset(config, env.count_examples(train=True), trained)
    yield from check_held_out(
        find_overlaps(config.evaluation, config.env_dir, set(trained), config.environment_isolation), len(trained)
    )
    ignored = {name: value for name, value in env.sampling_args.items() if name in BIASED}
    if ignored:
        advice = "rove rl ignores them, since the trainer only accounts for the temperature. Evaluate without them too"
        yield Finding(WARN, "environment's sampling", ", ".join(f"{k}={v}" for k, v in ignored.items()), advice)


def check_dataset(config: RLConfig, rows: int | None, trained: Sequence[str]) -> Finding:
    """Check whether there are enough different examples.

    Args:
        rows: Rows of the dataset; None if unknown.
        trained: Keys of the first training rows, at most `MAX_ROWS`; equal contents have equal keys.
    """
    different = len(set(trained))
    if not different:
        return Finding(FAIL, "dataset", "no rows to train on", "give the environment a dataset")
    checked = len(trained)
    seen = "rows generated on demand" if rows is None else f"{rows:,} rows"
    if checked != rows:
        seen += f", the first {checked:,} checked" if checked == MAX_ROWS else f", {checked:,} of them used"
    if different < checked:
        seen += f", {'only ' * (2 * different < checked)}{different:,} different ones"
    if different < config.groups:
        advice = "a step repeats examples: add different rows, or use fewer groups"
        return Finding(WARN, "dataset", f"{seen} for {config.groups} groups a step", advice)
    if checked < MAX_ROWS:
        seen += f", each used {config.groups * config.steps / different:.2g} times"
    if 2 * different < checked:
        return Finding(WARN, "dataset", seen, "most rows are duplicates, which the model memorizes: add different ones")
    return Finding(OK, "dataset", seen)


def check_held_out(found: Sequence[Overlap], trained: int) -> Iterator[Finding]:
    """Check, for each evaluation, that its rows are not training rows.

    Args:
        trained: Number of training rows that were checked, at most `MAX_ROWS`.
    """
    for one in found:
        if one.shared:
            advice = "this measures memorization: give the environment an eval_dataset, or the evaluation other env_args (a seed)"
            yield Finding(WARN, "held-out", str(one), advice)
        else:
            rest = f" (of which {MAX_ROWS:,} were checked)" if trained == MAX_ROWS else ""
            yield Finding(OK, "held-out", f"{one.evaluation}: none of {one.measured:,} rows is a training row{rest}")


def check_learning_rate(config: RLConfig, parameters: int, trained: int) -> Finding:
    """Check whether the learning rate suits the size of the model."""
    is_adapter = trained < MAX_ADAPTER_FRACTION * parameters or config.lora.rank > 0
    low, high = next(rates for limit, rates in LEARNING_RATES if parameters < limit)
    if is_adapter:
        low, high = low * LORA_RATE_FACTOR, high * LORA_RATE_FACTOR
    kind = f"an adapter of {trained / 1e6:,.2g} M parameters on" if is_adapter else "all of"
    base = parameters - trained if is_adapter else parameters
    seen = f"{config.learning_rate:g} for {kind} {base / 1e6:,.3g} M parameters"
    if config.learning_rate > MAX_LEARNING_RATE * (LORA_RATE_FACTOR if is_adapter else 1):
        advice = f"the first step would destroy any model: --learning-rate {low:g} to {high:g} worked"
        return Finding(FAIL, "learning rate", seen, advice)
    if config.learning_rate > RATE_TOLERANCE * high:
        advice = f"policies collapse at rates this high: --learning-rate {low:g} to {high:g} worked"
        return Finding(WARN, "learning rate", seen, advice)
    if config.learning_rate < low / RATE_TOLERANCE:
        return Finding(WARN, "learning rate", seen, f"slow: --learning-rate {low:g} to {high:g} worked")
    return Finding(OK, "learning rate", f"{seen}; {low:g} to {high:g} worked")


def check_model_name(model: str) -> Finding | None:
    """Return a finding if the model has no weights to train."""
    if model.startswith("scripted:"):
        advice = (
            "a scripted policy has no weights: create a model (rove model new) and train it on its rollouts (rove sft)"
        )
        return Finding(FAIL, "model", f"{model} is a scripted policy", advice)
    return None
