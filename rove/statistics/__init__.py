"""Statistics of evaluations: tallies, confidence intervals, comparison of runs."""

from rove.statistics.compare import Comparison, Difference, Mover, compare
from rove.statistics.intervals import (
    Estimate,
    clopper_pearson,
    mean,
    mean_estimate,
    needed_examples,
    pass_at_k,
    pass_hat_k,
    percentiles,
    sample_variance,
    t_quantile,
)
from rove.statistics.result import EvaluationResult
from rove.statistics.summary import Column, Price, Tally

__all__ = [
    "Column",
    "Comparison",
    "Difference",
    "Estimate",
    "EvaluationResult",
    "Mover",
    "Price",
    "Tally",
    "clopper_pearson",
    "compare",
    "mean",
    "mean_estimate",
    "needed_examples",
    "pass_at_k",
    "pass_hat_k",
    "percentiles",
    "sample_variance",
    "t_quantile",
]
