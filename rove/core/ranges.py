"""Number types with ranges.

The type of a setting states its range: `epochs: PositiveInt`. The check, the error message, `--help`, and docs/settings.md all
read the range from the type (see `rove.core.checks`), so that no other module states it.

Rule: every number has a range, and no number may be nan or infinite. "No limit" is None, or -1 if the type allows it,
but never infinity.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Annotated, NamedTuple

import msgspec.inspect
from msgspec import Meta

from rove.core.plain import JsonMapping

MAX_INT = 2**63 - 1
"""Largest integer of TOML. Messages do not show it as an upper bound."""
MAX_FLOAT = sys.float_info.max
"""Largest finite number. As an upper bound, it refuses infinity and nan. Messages do not show it."""
MAX_SECONDS = 1e9
"""Largest time limit, 31 years; timers overflow at 292 years."""

AnyInt = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_INT)]
IntFrom2 = Annotated[int, Meta(ge=2, le=MAX_INT)]
# msgspec ignores `extra`: rove reads it, for what msgspec's bounds cannot express.
CountOrAll = Annotated[int, Meta(ge=-1, le=MAX_INT, extra={"excluded": 0, "range": "1 or more, or -1 for all"})]
CountOrUnlimited = Annotated[
    int, Meta(ge=-1, le=MAX_INT, extra={"excluded": 0, "range": "1 or more, or -1 for no limit"})
]
Port = Annotated[int, Meta(ge=0, le=65535)]

FiniteFloat = Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=MAX_FLOAT)]
PositiveFloat = Annotated[float, Meta(gt=0, le=MAX_FLOAT)]
FloatFrom1 = Annotated[float, Meta(ge=1, le=MAX_FLOAT)]
FloatAbove1 = Annotated[float, Meta(gt=1, le=MAX_FLOAT)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
PositiveFraction = Annotated[float, Meta(gt=0, le=1)]
FractionBelow1 = Annotated[float, Meta(ge=0, lt=1)]
InnerFraction = Annotated[float, Meta(gt=0, lt=1)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS, extra={"range": "more than 0 and at most 1e9"})]
SecondsOrZero = Annotated[float, Meta(ge=0, le=MAX_SECONDS, extra={"range": "0 or more and at most 1e9"})]

Device = Annotated[
    str, Meta(pattern=r"^(auto|cpu|cuda|cuda:[0-9]{1,4}|mps)$", extra={"expected": "auto, cpu, cuda, cuda:N, or mps"})
]
"""Device that a model computes on; see `rove.models.device`."""


class Range(NamedTuple):
    """The numbers that a type allows."""

    number: type[int] | type[float]
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    excluded: int | None = None
    """A number that is refused although it is within the bounds."""
    own_text: str = ""
    """The range in words; by default, the bounds."""

    @property
    def low(self) -> float | None:
        """The lower bound, inclusive or not; None if the smallest number is the only bound."""
        bound = self.ge if self.gt is None else self.gt
        return bound if bound is not None and bound > -MAX_INT else None

    @property
    def high(self) -> float | None:
        """The upper bound, inclusive or not; None if the largest number is the only bound."""
        bound = self.le if self.lt is None else self.lt
        return bound if bound is not None and bound < MAX_INT else None

    def __str__(self) -> str:
        """Return the range in words; "" if every finite number is allowed."""
        if self.own_text:
            return self.own_text
        if self.ge is not None and self.le is not None and self.low is not None and self.high is not None:
            return f"{self.low:.10g} to {self.high:.10g}"
        bounds: list[str] = []
        if self.low is not None:
            low = f"{self.low:.10g}"
            bounds.append(f"more than {low}" if self.ge is None else f"{low} or more")
        if self.high is not None:
            high = f"{self.high:.10g}"
            bounds.append(f"less than {high}" if self.le is None else f"at most {high}")
        return " and ".join(bounds)

    @property
    def description(self) -> str:
        """The type and the range in words, for help texts."""
        noun = "integer" if self.number is int else "number"
        return f"{noun}, {self}" if str(self) else f"{noun}"

    def expected(self, value: object = None) -> str:
        """Return the part of an error message that says what is expected instead of `value`."""
        is_too_large = isinstance(value, int) and abs(value) > MAX_INT
        if self.number is int:
            return f"an {self.description}, of at most 64 bits" if is_too_large else f"an {self.description}"
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if is_too_large or (is_finite and str(self)):
            return f"a {self.description}"
        return f"a finite {self.description}"


@cache  # every request checks its sampling parameters, and `type_info` inspects the type each time
def range_of(annotation: object) -> Range | None:
    """Return the numbers that a type such as `PositiveInt | None` allows; None if it is not a number type."""
    return _range(msgspec.inspect.type_info(annotation))


def _range(info: object) -> Range | None:
    extra: JsonMapping = {}
    if isinstance(info, msgspec.inspect.Metadata):
        extra, info = _extra(info), info.type
    if isinstance(info, msgspec.inspect.UnionType):
        for option in info.types:
            option_range = _range(option)
            if option_range is not None:
                return option_range
        return None
    if not isinstance(info, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
        return None
    number = int if isinstance(info, msgspec.inspect.IntType) else float
    return Range(number, info.gt, info.ge, info.lt, info.le, extra.get("excluded"), extra.get("range", ""))


def _extra(info: object) -> JsonMapping:
    return getattr(info, "extra", None) or {}  # msgspec leaves the types of its keys and values open


def form_of(annotation: object) -> str:
    """Return a description of the values that a text type such as `Device` allows; "" if every text is allowed."""
    info = msgspec.inspect.type_info(annotation)
    return _extra(info).get("expected", "") if isinstance(info, msgspec.inspect.Metadata) else ""
