"""What the numbers of an evaluation say, and how surely."""

from rove.statistics.compare import Comparison, Difference, Mover, compare
from rove.statistics.estimates import (
    Estimate,
    clustered_estimate,
    clustered_mean,
    example_variance,
    mean,
    needed_examples,
    pass_at_k,
    pass_hat_k,
    percentiles,
    t_quantile,
)
from rove.statistics.tally import Price, Tally

__all__ = [
    "Comparison",
    "Difference",
    "Estimate",
    "Mover",
    "Price",
    "Tally",
    "clustered_estimate",
    "clustered_mean",
    "compare",
    "example_variance",
    "mean",
    "needed_examples",
    "pass_at_k",
    "pass_hat_k",
    "percentiles",
    "t_quantile",
]
