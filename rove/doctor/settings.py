"""What the settings of an RL run say by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rove.core.errors import ConfigError
from rove.doctor.findings import FAIL, OK, WARN, Finding
from rove.envs.environment import Environment
from rove.train.config import RLConfig
from rove.train.contamination import MAX_ROWS, Overlap, find_overlaps, trained_keys

BATCH, TINY_BATCH = 256, 64
"""Rollouts per step: below the first training is noisy, below the second it often collapses."""
GROUPS = 8
"""Fewest groups of a step whose mean says something of the dataset."""
SIBLINGS = 4
HOT, COLD = 1.25, 0.7
"""Sampling temperatures: above the first policies collapse (1.4 does), below the second siblings are too much alike."""
LARGE_BONUS = 0.1
"""An entropy bonus that destroyed a tiny policy; 0.01 to 0.03 helped it."""
RATES = ((20e6, (1e-4, 1e-3)), (200e6, (3e-6, 1e-4)), (float("inf"), (1e-6, 5e-6)))
"""Parameters below → learning rates that worked when all of them were trained (between the first and the last: by eye)."""
LORA = 10
"""An adapter takes so many times the rate."""
ADAPTER = 0.2
"""Only adapters train a smaller share of a model's parameters than this."""
ROOM = 2.0
"""Rates this many times outside of what worked are warned of."""
ABSURD = 1e-2
"""AdamW moves every weight by about the learning rate in a step, and weights are a few hundredths."""
BIASED = ("top_p", "top_k", "min_p")
"""Sampling that the trainer's probabilities know nothing of."""


def check_settings(config: RLConfig) -> Iterator[Finding]:
    """Findings that need neither model nor environment."""
    try:
        config.check()
        yield Finding(OK, "settings", "allowed")
    except ConfigError as error:
        yield Finding(FAIL, "settings", str(error), "rove rl refuses this; change it")
        return
    yield check_batch(config)
    yield check_groups(config)
    yield check_temperature(config)
    yield check_schedule(config)
    if config.lora.rank:
        yield check_adapter(config)


def check_batch(config: RLConfig) -> Finding:
    """Whether a step has enough rollouts."""
    seen = f"{config.batch_size} rollouts per step"
    if config.batch_size < TINY_BATCH:
        return Finding(WARN, "batch", seen, f"so few collapse, with more steps too: --batch-size {BATCH} or more")
    if config.batch_size < BATCH:
        return Finding(WARN, "batch", seen, f"noisy: --batch-size {BATCH} or more")
    return Finding(OK, "batch", seen)


def check_groups(config: RLConfig) -> Finding:
    """Whether groups have enough siblings, a step enough groups, and each difficulty its share of them."""
    siblings = config.rollouts_per_example
    groups, buckets = config.batch_size // siblings, config.env_args.get("num_groups", 1)
    seen = f"{groups} groups of {siblings}"
    if siblings < SIBLINGS:
        return Finding(WARN, "groups", seen, "few siblings often score alike, which teaches nothing: -r 8")
    if groups < GROUPS:
        return Finding(
            WARN, "groups", seen, f"a step sees few examples: at least {GROUPS} groups, a larger --batch-size"
        )
    if isinstance(buckets, int) and buckets > 0 and groups % buckets:
        advice = f"a multiple of num_groups ({buckets}) would hold each difficulty equally often"
        return Finding(WARN, "groups", seen, advice)
    return Finding(OK, "groups", seen)


def check_temperature(config: RLConfig) -> Finding:
    """Whether sampling explores, but does not ramble."""
    seen = f"temperature {config.temperature:g}"
    if config.temperature > HOT:
        return Finding(WARN, "sampling", seen, "policies collapse at 1.4: -T 1, at most 1.25 with large batches")
    if config.temperature < COLD:
        return Finding(WARN, "sampling", seen, "siblings become alike and entropy falls: -T 1")
    return Finding(OK, "sampling", seen)


def check_schedule(config: RLConfig) -> Finding:
    """Whether the learning rate ever gets to its peak, and what else shapes a run."""
    seen = f"{config.steps} steps, {config.warmup_steps} of warm-up, entropy bonus {config.loss.entropy_bonus:g}"
    if config.loss.entropy_bonus >= LARGE_BONUS:
        return Finding(WARN, "schedule", seen, "such a bonus destroyed a tiny policy: --loss.entropy-bonus 0 to 0.03")
    if config.warmup_steps >= config.steps:
        return Finding(
            WARN, "schedule", seen, "the learning rate never gets to its peak: more --steps, fewer --warmup_steps"
        )
    if config.checkpoint_every >= config.steps > 10:
        return Finding(WARN, "schedule", seen, "no checkpoint before the end: a smaller --checkpoint_every")
    return Finding(OK, "schedule", seen)


def check_adapter(config: RLConfig) -> Finding:
    """What is trained instead of the model, and whether it is what plays."""
    seen = (
        f"rank {config.lora.rank}, alpha {config.lora.alpha:g}, {', '.join(config.lora.targets) or 'all linear layers'}"
    )
    if config.lora.dropout:
        advice = "games are played without dropout, so ratios are off from the first step on: --lora.dropout 0"
        return Finding(WARN, "adapter", f"{seen}, dropout {config.lora.dropout:g}", advice)
    return Finding(OK, "adapter", seen)


def check_environment(config: RLConfig, env: Environment) -> Iterator[Finding]:
    """Findings about what there is to play."""
    trained = trained_keys(config, env)
    yield check_dataset(config, env.count_examples(train=True), trained)
    yield from check_held_out(
        find_overlaps(config.evaluation, config.env_dir, set(trained), config.environment_isolation), len(trained)
    )
    ignored = {name: value for name, value in env.sampling_args.items() if name in BIASED}
    if ignored:
        advice = "rove rl does not use them: the trainer knows only the temperature. Evaluate without them too"
        yield Finding(WARN, "environment's sampling", ", ".join(f"{k}={v}" for k, v in ignored.items()), advice)


def check_dataset(config: RLConfig, rows: int | None, trained: Sequence[str]) -> Finding:
    """Whether there are enough different examples.

    Args:
        config: settings.
        rows: of the dataset; None where that is not known.
        trained: keys of the first rows that are played, at most `MOST`; equal contents have equal ones.
    """
    different = len(set(trained))
    if not different:
        return Finding(FAIL, "dataset", "no rows to train on", "give the environment a dataset")
    looked_at = len(trained)
    seen = "rows made as they are read" if rows is None else f"{rows:,} rows"
    if looked_at != rows:
        seen += f", the first {looked_at:,} looked at" if looked_at == MAX_ROWS else f", {looked_at:,} of them played"
    if different < looked_at:
        seen += f", {'only ' * (2 * different < looked_at)}{different:,} different ones"
    if different < config.groups:
        advice = "the same example several times a step: more different rows, or fewer groups"
        return Finding(WARN, "dataset", f"{seen} for {config.groups} groups a step", advice)
    if looked_at < MAX_ROWS:
        seen += f", each played {config.groups * config.steps / different:.2g} times"
    if 2 * different < looked_at:
        return Finding(
            WARN, "dataset", seen, "most rows repeat others, which are soon known by heart: more different ones"
        )
    return Finding(OK, "dataset", seen)


def check_held_out(found: Sequence[Overlap], trained: int) -> Iterator[Finding]:
    """Whether what is measured while training is not what is trained on; of an evaluation each a finding.

    Args:
        found: what evaluations share with the training rows.
        trained: how many of those were looked at, at most `MOST`.
    """
    for one in found:
        if one.shared:
            advice = (
                "that measures memory: give the environment an eval_dataset, or the evaluation other env_args (a seed)"
            )
            yield Finding(WARN, "held-out", str(one), advice)
        else:
            rest = f" (of which {MAX_ROWS:,} were looked at)" if trained == MAX_ROWS else ""
            yield Finding(OK, "held-out", f"{one.evaluation}: none of {one.measured:,} rows is trained on{rest}")


def check_learning_rate(config: RLConfig, parameters: int, trained: int) -> Finding:
    """Whether the learning rate suits the size of the model.

    Args:
        config: settings.
        parameters: of the model.
        trained: how many of them have a gradient.
    """
    is_adapter = trained < ADAPTER * parameters or config.lora.rank > 0
    low, high = next(rates for most, rates in RATES if parameters < most)
    if is_adapter:
        low, high = low * LORA, high * LORA
    kind = "an adapter of" if is_adapter else "all of"
    seen = f"{config.learning_rate:g} for {kind} {parameters / 1e6:,.3g} M parameters"
    if config.learning_rate > ABSURD * (LORA if is_adapter else 1):
        advice = f"the first step would ruin any model: --learning-rate {low:g} to {high:g} worked"
        return Finding(FAIL, "learning rate", seen, advice)
    if config.learning_rate > ROOM * high:
        advice = f"policies collapse at rates too high: --learning-rate {low:g} to {high:g} worked"
        return Finding(WARN, "learning rate", seen, advice)
    if config.learning_rate < low / ROOM:
        return Finding(WARN, "learning rate", seen, f"slow: --learning-rate {low:g} to {high:g} worked")
    return Finding(OK, "learning rate", seen)


def check_model_name(model: str) -> Finding | None:
    """A finding where the model cannot be one whose weights are here."""
    if model.startswith("scripted:"):
        advice = "a script has no weights: train a model folder (rove model new), on its rollouts first (rove sft)"
        return Finding(FAIL, "model", f"{model} is a scripted policy", advice)
    return None
