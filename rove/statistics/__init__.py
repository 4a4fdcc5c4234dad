"""Statistics of evaluations: tallies, confidence intervals, comparison of runs."""

from rove.statistics.compare import Comparison, Difference, Mover, compare
from rove.statistics.estimates import mean, needed_examples, pass_at_k, pass_hat_k, percentiles
from rove.statistics.intervals import Estimate, clopper_pearson, mean_estimate, sample_variance, t_quantile
from rove.statistics.tally import Column, Price, Tally

__all__ = [
    "Column",
    "Comparison",
    "Difference",
    "Estimate",
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
