"""Compare two runs example by example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rove.core.config import dotted
from rove.core.errors import ConfigError, nearest
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.records import Outcome, RolloutRecord
from rove.runs.run import Run
from rove.statistics.format import caveats, folded, interval, number, signed
from rove.statistics.intervals import (
    EQUAL,
    HUGE,
    LARGEST,
    ONE,
    POINTS,
    Estimate,
    Z,
    equal_limits,
    mean,
    needed_examples,
    no_interval,
    sample_variance,
    widened_t,
)
from rove.statistics.result import EvaluationResult
from rove.statistics.summary import TOLERANCE, Column, Columns
from rove.utils.notebook import ShownAsText

if TYPE_CHECKING:
    from rich.table import Table

CompareSource = str | Path | Run | EvaluationResult | Iterable[Outcome | RolloutRecord]
"""Input of `compare`: a run folder, a run, the result of an evaluation that wrote a run, or rollouts."""
REWARD = "reward"
ANY_FLAG = "--any-environment"
ENVIRONMENT_SETTINGS = ("env", "env_args", "rubric", "train")
"""Settings in a run's identity that determine the run's examples and rewards."""
QUESTION_FILES = (".jsonl", ".ndjson", ".csv", ".parquet")
"""Suffixes of files of questions."""
NUMBER_COLUMNS = 53
"""Number of columns that a comparison's table needs for numbers, the direction and borders."""
MOVERS = 10
"""Maximum number of examples listed per direction."""
FEWEST_DIFFERING = 6
"""Minimum number of differing examples for a reported direction: fewer fair coins agree in more than 5% of cases."""
FEWEST_RANGE = 15
"""Minimum number of examples for the observed range of values to count as their true range, unless all values are 0 or 1."""
FEWEST_COMPARED = 10
"""With fewer examples, the interval of a difference has a caveat."""
FEW = f"interval may be too narrow: fewer than {FEWEST_COMPARED} examples"
MOST_FLIPPED = 12
"""Maximum number of differing examples for which `sign_flip_test` counts all combinations of signs."""
SIGNIFICANT = 0.05
"""Maximum p-value of a significant test."""


class Difference(msgspec.Struct, frozen=True):
    """One value in both runs: means over the compared examples, equally weighted."""

    name: str
    a: float
    b: float
    difference: float
    """Value of run b minus value of run a."""
    low: float
    """Lower limit of the 95% interval of the difference; nan without an interval."""
    high: float
    """Upper limit of the 95% interval of the difference; nan without an interval."""
    caveat: str | None
    """Reason why the interval may be invalid or is missing; None for a valid interval."""
    examples: int
    """Number of examples with the value in both runs; 0 if the comparison is unpaired."""
    direction: int
    """1 if the interval is above zero (b is higher), −1 if it is below, else 0: undecided."""
    weight: float | None
    """Weight of the value in the reward of run B, or else of run A; 0 for a metric, None for the reward itself."""


class Mover(msgspec.Struct, frozen=True):
    """An example with its mean in both runs."""

    example_key: str
    example_id: int
    """Position of the example in the dataset of run B."""
    a: float
    b: float


class Comparison(ShownAsText, msgspec.Struct, frozen=True):
    """The result of `compare`."""

    names: tuple[str, str]
    verdict: str
    """The conclusion as a sentence."""
    main: Difference
    """The compared value."""
    paired: bool
    """Whether the comparison is over shared examples; False if the runs share none."""
    only_a: int
    """Number of examples that are excluded because only A scored them; if unpaired, the number of A's examples."""
    only_b: int
    wins: int
    """Number of examples in which b is higher."""
    ties: int
    losses: int
    up: list[Mover]
    """Examples with the largest increase, in descending order."""
    down: list[Mover]
    needed_examples: int | None
    """Number of examples needed to detect a difference of 0.02 (if unpaired: per run); see `needed_examples`."""
    others: list[Difference]
    """All other values of both runs: the reward, then the others by weight. Intervals are not corrected for multiple
    comparisons: among twenty equal values, one value is expected to appear different."""
    notes: list[str]
    """Limitations of the comparison: differing weights or functions, excluded examples."""

    @property
    def table(self) -> Table:
        """All common values, their differences, and the direction, if any. `print` shows the table as text."""
        return comparison_table(self)

    def __str__(self) -> str:
        """Return the verdict and the table."""
        return f"{self.verdict}\n{self.table}"


class _Side:
    """One run's values by example."""

    def __init__(self, rollouts: Iterable[Outcome | RolloutRecord]):
        self.columns = Columns()
        self.ids: dict[str, int] = {}
        for rollout in rollouts:
            if rollout.scores is not None:
                self.columns.add(rollout.example_key, rollout.scores)
                self.ids[rollout.example_key] = rollout.example_id
        self.keys = list(self.columns.indices)
        self.weights = self.columns.weights
        self.functions = set(self.columns.named)

    def means(self, name: str) -> dict[str, float]:
        """Return the mean over the rollouts of every example that has the value."""
        return {self.keys[example]: value for example, value in self.column(name).means()}

    def column(self, name: str) -> Column:
        """Return the values of this reward function or metric, or of the reward."""
        return self.columns.reward if name == REWARD else self.columns.named[name]


def scored_outcomes(run: Run) -> list[Outcome]:
    """Return the scored rollouts of a run; if a rollout was repeated, the last attempt counts.

    Raises:
        RunError: The folder is not a run folder.
    """
    run.config()
    last = {line.number for line in run.scored_lines().values()}
    return [outcome for number, outcome in enumerate(run.outcomes()) if number in last]


def run_names(a: Path, b: Path) -> tuple[str, str]:
    """Return names for two runs: the names of their folders, or the paths if these names are equal."""
    name_a, name_b = a.resolve().name, b.resolve().name
    return (name_a, name_b) if name_a != name_b else (str(a), str(b))


def _as_run(source: CompareSource) -> Run | Iterable[Outcome | RolloutRecord]:
    if isinstance(source, (str, Path)):
        return Run(source)
    if isinstance(source, EvaluationResult):
        if source.run is None:
            raise ConfigError("the result has no run folder; evaluate with run= or run_dir=, or pass rollouts")
        return source.run
    return source


def _read_sides(
    a: Run | Iterable[Outcome | RolloutRecord],
    b: Run | Iterable[Outcome | RolloutRecord],
    names: tuple[str, str] | None,
    any_environment: bool,
) -> tuple[tuple[_Side, _Side], tuple[str, str]]:
    """Return the values of both runs, and the names of the runs."""
    side_a, side_b = (_Side(scored_outcomes(source) if isinstance(source, Run) else source) for source in (a, b))
    if isinstance(a, Run) and isinstance(b, Run):
        if not any_environment:
            check_comparable(run_settings(a), run_settings(b), bool(side_a.ids.keys() & side_b.ids.keys()))
        names = names or run_names(a.path, b.path)
    return (side_a, side_b), names or ("A", "B")


def run_settings(run: Run) -> JsonObject:
    """Return a run's identity under dotted names, including the kind of run."""
    config = run.config()
    return dotted({"kind": config["kind"], **config["identity"]})


def environment_name(settings: JsonMapping) -> str:
    """Return the environment of `run_settings` without its version. All files of questions have the same name, because they are
    compared by their examples.
    """
    name = str(settings.get("env", "")).split("#")[0]
    return "a file of questions" if Path(name).suffix.lower() in QUESTION_FILES else name


def differing(a: JsonMapping, b: JsonMapping) -> dict[str, list[JsonValue]]:
    """Return the settings that differ, with both values; a value is None if a run lacks the setting."""
    values = {name: [a.get(name), b.get(name)] for name in sorted(a.keys() | b.keys())}
    return {name: [old, new] for name, (old, new) in values.items() if old != new}


def check_comparable(a: JsonMapping, b: JsonMapping, share_examples: bool) -> None:
    """Refuse runs whose results could differ for reasons other than the models.

    Args:
        a: `run_settings` of the first run.
        b: `run_settings` of the second run.
        share_examples: Whether both runs scored some example.
    """
    names = [environment_name(settings) for settings in (a, b)]
    # Rewards of different environments have different scales.
    if names[0] != names[1]:
        raise ConfigError(
            f"the runs are of different environments, '{names[0]}' and '{names[1]}': a difference of their rewards says nothing "
            f"about the models. Compare runs of one environment, or give {ANY_FLAG} (any_environment=True in Python)"
        )
    # Equal examples make runs comparable, even if their settings differ.
    if share_examples:
        return
    changed = [name for name in differing(a, b) if name.split(".")[0] in ENVIRONMENT_SETTINGS]
    if changed:
        raise ConfigError(
            f"the runs share no examples, and these settings of the environment differ: {', '.join(changed)}. Evaluate both "
            f"models with the same settings, or give {ANY_FLAG} (any_environment=True in Python)"
        )


def compare(
    a: CompareSource,
    b: CompareSource,
    value: str = REWARD,
    *,
    names: tuple[str, str] | None = None,
    movers: int = MOVERS,
    any_environment: bool = False,
) -> Comparison:
    """Compare two runs (b − a) over the examples that both have scored.

    The unit is the example: its value is the mean over its scored rollouts, because rollouts of one example are not independent.
    The interval is for the mean difference over examples (paired; Miller 2024, arXiv:2411.00640). It determines the
    verdict: a direction is reported if and only if the interval excludes zero.

    - If examples only gain or lose the whole range of values, it is the interval of Bonett and Price (2012).
    - If all differences are equal, it is exact for values of 0 and 1 (`equal_limits`). For other values, there is no
      interval for fewer than `FEWEST_RANGE` examples; for more examples, it is the interval of Bonett and Price.
    - Otherwise, it is Student's t, widened for skewed differences (`widened_t`).

    The interval is extended to zero unless an exact test over the signs of the differences is significant
    (`sign_flip_test`). Significance takes at least `FEWEST_DIFFERING` differing examples. Without common examples, the
    interval combines the intervals of both runs (Zou & Donner 2008).

    Args:
        a: The baseline: a run folder, a run, a result of `rove.evaluate`, or rollouts.
        b: The run to compare with the baseline.
        value: "reward", or the name of a reward function or metric of both runs.
        names: Names of the runs in the verdict. Default: the names of two run folders, "A" and "B" for rollouts.
        movers: Maximum number of examples listed per direction.
        any_environment: Also compare runs of different environments or data, like `rove compare --any-environment`.

    Example:
        >>> print(rove.compare("runs/before", "runs/after"))

    Raises:
        ConfigError: A run has no scored rollout or lacks the value, or the runs have different environments, or they share no
            examples and have different settings of the environment.
        RunError: A folder contains no run.
    """
    (side_a, side_b), names = _read_sides(_as_run(a), _as_run(b), names, any_environment)
    for side, name in zip((side_a, side_b), names):
        if not side.keys:
            raise ConfigError(f"{name} has no scored rollout; a comparison needs at least one in each run")
        if value != REWARD and value not in side.functions:
            raise ConfigError(f"{name} has no value '{value}'; {nearest(value, {REWARD, *side.functions})}")
    in_a, in_b = side_a.means(value), side_b.means(value)
    shared = in_a.keys() & in_b.keys()
    moved = [Mover(key, side_b.ids[key], in_a[key], in_b[key]) for key in shared]
    # By key at last: `shared` is a set, and equal runs must print equal lists.
    moved.sort(key=lambda mover: (-abs(mover.b - mover.a), mover.example_id, mover.example_key))
    up = [mover for mover in moved if mover.b - mover.a > TOLERANCE]
    down = [mover for mover in moved if mover.a - mover.b > TOLERANCE]
    only = (len(in_a) - len(shared), len(in_b) - len(shared))
    main, needed = _difference(value, side_a, side_b)
    common_functions = side_a.functions & side_b.functions
    differences = [_difference(name, side_a, side_b)[0] for name in {REWARD, *common_functions} - {value}]
    # The reward, whose weight is None, then by weight.
    differences.sort(key=lambda item: (item.weight is not None, -abs(item.weight or 0.0), item.name))
    return Comparison(
        names=names,
        verdict=_verdict(main, needed, only, names, len(up) + len(down)),
        main=main,
        paired=bool(shared),
        only_a=only[0],
        only_b=only[1],
        wins=len(up),
        ties=len(shared) - len(up) - len(down),
        losses=len(down),
        up=up[:movers],
        down=down[:movers],
        needed_examples=needed,
        others=differences,
        notes=_notes((side_a, side_b), names, bool(shared), only),
    )


def _difference(name: str, a: _Side, b: _Side) -> tuple[Difference, int | None]:
    """Return the difference of one value, and the number of examples needed to detect a difference of 0.02."""
    weight = None if name == REWARD else b.weights.get(name, a.weights.get(name, 0.0))
    is_metric = weight == 0.0
    columns = a.column(name), b.column(name)
    in_a, in_b = a.means(name), b.means(name)
    shared = in_a.keys() & in_b.keys()
    if shared:
        in_a = {key: in_a[key] for key in shared}
        in_b = {key: in_b[key] for key in shared}
        gaps = [in_b[key] - in_a[key] for key in shared]
        estimate = _paired(gaps, _value_range(*columns, len(gaps), is_metric))
        variance = sample_variance(gaps)
    else:
        estimate = _unpaired(*columns, is_metric)
        variance = sum(sample_variance(column.example_means()) for column in columns)
    has_interval = math.isfinite(estimate.low)
    if has_interval and _are_binary(*columns, is_metric):  # a difference of two shares is between −1 and 1
        estimate = msgspec.structs.replace(estimate, low=max(-1.0, estimate.low), high=min(1.0, estimate.high))
    difference = Difference(
        name,
        mean(list(in_a.values())),
        mean(list(in_b.values())),
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        caveat=estimate.caveat,
        examples=len(shared),
        direction=_sign_of(estimate),
        weight=weight,
    )
    return difference, needed_examples(variance)


def _value_range(a: Column, b: Column, examples: int, is_metric: bool) -> tuple[float, float] | None:
    """Return the smallest and the largest value that a rollout may have; None if there are too few examples to know them, or
    the values overflow.
    """
    if _are_binary(a, b, is_metric):
        return 0.0, 1.0
    low, high = min(a.low, b.low), max(a.high, b.high)
    if examples < FEWEST_RANGE or not TOLERANCE < high - low <= LARGEST:
        return None
    return low, high


def _are_binary(a: Column, b: Column, is_metric: bool) -> bool:
    """Return whether the only possible values are 0 and 1. Equal values of a metric may be a count; see `metric_estimate`."""
    levels = a.levels | b.levels
    return levels <= {0.0, 1.0} and (len(levels) == 2 or not is_metric)


def _paired(gaps: Sequence[float], limits: tuple[float, float] | None) -> Estimate:
    """Estimate the mean of differences; its interval excludes zero if and only if a direction is reported.

    Args:
        gaps: One difference per example.
        limits: Smallest and largest possible value of a rollout; None if they are unknown.
    """
    n, center = len(gaps), mean(gaps)
    span = limits[1] - limits[0] if limits else None
    if n < 2:
        return no_interval(center, ONE)
    if max(abs(gap) for gap in gaps) > LARGEST:
        return no_interval(center, HUGE)
    if span is not None and all(_is_near(gap, 0.0) or _is_near(abs(gap), span) for gap in gaps):
        up = len([gap for gap in gaps if gap > TOLERANCE])
        down = len([gap for gap in gaps if -gap > TOLERANCE])
        estimate = _scaled(bonett_price(up, down, n), span)
    elif max(gaps) - min(gaps) <= TOLERANCE:
        estimate = _equal(center, n, limits)
    else:
        estimate = widened_t(gaps)
    # The interval and the verdict must not disagree: without a significant test, zero is inside.
    if math.isfinite(estimate.low) and sign_flip_test(gaps) > SIGNIFICANT:
        estimate = msgspec.structs.replace(estimate, low=min(0.0, estimate.low), high=max(0.0, estimate.high))
    if not estimate.caveat and n < FEWEST_COMPARED:
        estimate = msgspec.structs.replace(estimate, caveat=FEW)
    return estimate


def _equal(gap: float, n: int, limits: tuple[float, float] | None) -> Estimate:
    """Estimate the mean of differences that are all equal."""
    if limits == (0.0, 1.0):
        return Estimate(gap, *equal_limits(gap, n, -1.0, 1.0))
    if limits is None:  # too few examples: the others may differ by any amount
        return no_interval(gap, EQUAL)
    unit = bonett_price(n, 0, n)
    limits_of_gap = gap * unit.low, gap * unit.high
    return Estimate(gap, min(limits_of_gap), max(limits_of_gap))


def _is_near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE


def _unpaired(a: Column, b: Column, is_metric: bool) -> Estimate:
    """Estimate the difference between the means of different examples."""
    limits = _value_range(a, b, min(a.examples, b.examples), is_metric)
    return difference_estimate(*(_run_estimate(column, limits, is_metric) for column in (a, b)))


def _run_estimate(column: Column, limits: tuple[float, float] | None, is_metric: bool) -> Estimate:
    """Estimate the mean of one run, whose rollouts have values within `limits`."""
    estimate = column.metric_estimate if is_metric else column.estimate
    values = column.example_means()
    if estimate.caveat == EQUAL and limits is not None:
        return Estimate(estimate.mean, *equal_limits(estimate.mean, len(values), *limits))
    if column.levels <= {0.0, 1.0} or math.isnan(estimate.low):  # its interval is exact, or there is none
        return estimate
    return msgspec.structs.replace(widened_t(values), caveat=FEW if len(values) < FEWEST_COMPARED else None)


def _sign_of(estimate: Estimate) -> int:
    """Return the sign of an estimate whose interval excludes zero, else 0."""
    if estimate.low > TOLERANCE:
        return 1
    if estimate.high < -TOLERANCE:
        return -1
    return 0


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(estimate.mean * factor, estimate.low * factor, estimate.high * factor, estimate.caveat)


def sign_flip_test(gaps: Sequence[float]) -> float:
    """Return the two-sided p-value of the mean of differences whose signs would be random if the runs were equally good.

    Differences of zero are ignored. The test is exact: for differences of equal size, it is the sign test (McNemar's);
    for up to `MOST_FLIPPED` differences of unequal size, it counts all combinations of signs. For more differences, it returns
    0 without a test, because Student's t leads to the same decision.
    """
    moved = [gap for gap in gaps if abs(gap) > TOLERANCE]
    if not moved:
        return 1.0
    size = abs(moved[0])
    if all(_is_near(abs(gap), size) for gap in moved):
        up = len([gap for gap in moved if gap > 0.0])
        return sign_test(up, len(moved) - up)
    if len(moved) > MOST_FLIPPED:
        return 0.0
    sums = [0.0]
    for gap in moved:
        sums = [*(total + gap for total in sums), *(total - gap for total in sums)]
    observed = abs(math.fsum(moved)) - TOLERANCE
    at_least_as_extreme = [total for total in sums if abs(total) >= observed]
    return len(at_least_as_extreme) / len(sums)


def sign_test(up: int, down: int) -> float:
    """Return the two-sided p-value of `up` rises among `up + down` changes that go either way with probability 1/2."""
    n = up + down
    probabilities: list[float] = []
    for count in range(min(up, down) + 1):
        # In logarithms: the binomial coefficients of large runs exceed the largest float.
        log_coefficient = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
        probabilities.append(math.exp(log_coefficient - n * math.log(2)))
    return min(1.0, 2 * math.fsum(probabilities))


def bonett_price(up: int, down: int, n: int) -> Estimate:
    """Estimate a difference of paired proportions (Bonett & Price 2012, "Adjusted Wald confidence interval ...").

    Args:
        up: Number of pairs that rose by 1.
        down: Number of pairs that fell by 1.
        n: Number of all pairs.
    """
    # Adjusted: one rise and one fall are added, so that no proportion is 0.
    rise, fall = (up + 1) / (n + 2), (down + 1) / (n + 2)
    difference = rise - fall
    reach = Z * math.sqrt((rise + fall - difference**2) / (n + 2))
    return Estimate((up - down) / n, max(-1.0, difference - reach), min(1.0, difference + reach))


def difference_estimate(a: Estimate, b: Estimate) -> Estimate:
    """Estimate b − a from independent estimates, whose intervals may be asymmetric.

    Zou & Donner 2008, "Construction of confidence limits about effect measures: a general approach".
    """
    difference, caveat = b.mean - a.mean, a.caveat or b.caveat
    # Each limit combines the errors in its own direction, because exact intervals of shares are not symmetric.
    low = difference - math.hypot(b.mean - b.low, a.high - a.mean)
    high = difference + math.hypot(b.high - b.mean, a.mean - a.low)
    if math.isnan(low) or math.isnan(high):
        return no_interval(difference, caveat or "no interval")
    return Estimate(difference, low, high, caveat)


def _verdict(
    main: Difference, needed: int | None, only: tuple[int, int], names: tuple[str, str], num_differing: int
) -> str:
    """Return the conclusion as a sentence; `only` has the numbers of examples that a single run has scored."""
    if main.examples:
        plural = "s" if main.examples > 1 else ""
        basis = f"on {main.examples:,} shared example{plural}"
    else:
        basis = f"between {only[0]:,} and {only[1]:,} different examples"
    limits = "" if math.isnan(main.low) else f" [{main.low:+.3f}, {main.high:+.3f}]"
    result = f"{main.name} {main.difference:+.3f}{limits} {basis}"
    if main.direction:
        return f"{names[1]} is {_judgement(main)} than {names[0]}: {result}"
    if needed is None:
        return f"too few examples: {result}; an interval needs at least 2 examples"
    if math.isnan(main.low) and abs(main.difference) <= TOLERANCE:
        result = f"{main.name} is equal {basis}"
    if main.examples and 0 < num_differing < FEWEST_DIFFERING:
        return f"too few examples to determine a direction: {result}; at least {FEWEST_DIFFERING} examples must differ"
    available = main.examples or min(only)
    if available >= needed:
        return f"no detectable difference: {result}; a difference of {POINTS} would probably have been detected"
    each = "" if main.examples else " in each run"
    return (
        f"no detectable difference: {result}; "
        f"about {needed - available:,} more examples{each} would be needed to detect a difference of {POINTS}"
    )


def _judgement(main: Difference) -> str:
    """Return "better" or "worse" for a value with a weight, "higher" or "lower" for a metric."""
    if main.weight == 0.0:
        return "higher" if main.direction > 0 else "lower"
    weight = 1.0 if main.weight is None else main.weight  # of a penalty, it is negative
    return "better" if main.direction * weight > 0 else "worse"


def _notes(sides: tuple[_Side, _Side], names: tuple[str, str], paired: bool, only: tuple[int, int]) -> list[str]:
    a, b = sides
    notes: list[str] = []
    if not paired:
        notes.append("the runs share no examples: a difference between different examples is less certain")
    elif any(only):
        notes.append(
            f"excluded because the other run did not score them: {only[0]:,} of {names[0]}, {only[1]:,} of {names[1]}"
        )
    changed: list[str] = []
    for name in sorted((a.functions & b.functions) - a.columns.varying_weights - b.columns.varying_weights):
        weight_a, weight_b = a.weights.get(name, 0.0), b.weights.get(name, 0.0)
        if weight_a != weight_b:
            changed.append(f"{name} {weight_a:g} → {weight_b:g}")
    if changed:
        notes.append(f"reward weights differ ({', '.join(changed)}): the rewards are not comparable")
    only_functions = sorted(a.functions - b.functions), sorted(b.functions - a.functions)
    for name, functions in zip(names, only_functions):
        if functions:
            notes.append(f"only {name} has {', '.join(functions)}")
    return notes


def name_width(width: int) -> int:
    """Return the width of a name in a comparison that is `width` characters wide: three of its columns contain names."""
    return (width - NUMBER_COLUMNS) // 3


def comparison_table(comparison: Comparison, width: int = 98) -> Table:
    """Return a table of two runs: all common values, their differences, and the direction, if any."""
    from rove.utils.console import TextTable

    width = min(98, width)
    examples = "the examples of both" if comparison.paired else "different examples"
    title = f"means over {examples}; a direction if the interval excludes 0"
    values = (comparison.main, *comparison.others)
    noted = caveats({"caveat": difference.caveat} for difference in values)
    table = TextTable(title=title, title_justify="left", width=width, caption=noted or None, caption_justify="left")
    table.add_column("", style="bold", overflow="fold")
    run_width = min(name_width(width), max(map(len, comparison.names)))
    for name in comparison.names:
        table.add_column(folded(name, run_width), justify="right", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for difference in values:
        name, *cells = comparison_row(difference)
        table.add_row(folded(name, width - NUMBER_COLUMNS - 2 * run_width), *cells)
    return table


def comparison_row(difference: Difference) -> tuple[str, str, str, str, str, str]:
    """Return name, both means, difference, interval and direction ("higher", "lower" or "") of a compared value."""
    direction = {1: "higher", 0: "", -1: "lower"}[difference.direction]
    reach = interval({"low": difference.low, "high": difference.high, "caveat": difference.caveat})
    return difference.name, number(difference.a), number(difference.b), signed(difference.difference), reach, direction
