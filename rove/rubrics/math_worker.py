"""The worker program of `MathPool`. It does not import rove, so that it starts quickly.

math-verify decides whether two answers are equal, with four rules around it:

- A full stop, comma, semicolon or colon at the end is punctuation; bold and italics are formatting; a space between
  groups of three digits separates thousands.
- Two quantities with different units are equal only if the units measure the same quantity and the converted values are
  equal.
- A ratio (3:4) is equal only to a ratio, and a sequence with an ellipsis (1, 2, …) only to a sequence of the same terms.
- Two values are equal only if their ratio is 1, however small they are. math-verify rounds decimals to six places, so a
  ratio that differs from 1 by at most 1e-5 counts as 1 if one of the values is a decimal.
"""

# sympy and math-verify have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import Any, NamedTuple

import sympy
from math_verify import parse, verify

EXACT_TOLERANCE, DECIMAL_TOLERANCE = 1e-12, 1e-5
DIGITS = 30
"""Significant digits of a value in a comparison."""
MAX_QUANTITY_CHARS = 1_000
"""A longer text is no quantity: to search it for a unit takes quadratic time."""

LENGTHS = {
    "1": "m meter meters metre metres",
    "1000": "km kilometer kilometers kilometre kilometres",
    "1/100": "cm centimeter centimeters centimetre centimetres",
    "1/1000": "mm millimeter millimeters millimetre millimetres",
    "1/1000000": "µm micrometer micrometers",
    "1/1000000000": "nm nanometer nanometers",
    "254/10000": "in inch inches",
    "3048/10000": "ft foot feet",
    "9144/10000": "yd yard yards",
    "1609344/1000": "mi mile miles",
}
MASSES = {
    "1": "g gram grams",
    "1000": "kg kilogram kilograms",
    "1/1000": "mg milligram milligrams",
    "1000000": "ton tons tonne tonnes",
    "45359237/100000": "lb lbs pound pounds",
    "45359237/1600000": "oz ounce ounces",
}
TIMES = {
    "1": "s sec secs second seconds",
    "1/1000": "ms millisecond milliseconds",
    "60": "min mins minute minutes",
    "3600": "h hr hrs hour hours",
    "86400": "day days",
    "604800": "week weeks",
}
OTHERS = {
    "calendar": {"1": "month months", "12": "year years yr yrs"},
    "dollar": {"1": "dollar dollars $", "1/100": "cent cents ¢"},
    "euro": {"1": "euro euros €"},
    "sterling": {"1": "£"},
    "degree": {"1": "° degree degrees"},
    "radian": {"1": "rad rads radian radians"},
    "celsius": {"1": "°C"},
    "fahrenheit": {"1": "°F"},
    "kelvin": {"1": "K kelvin kelvins"},
    "force": {"1": "N newton newtons", "1000": "kN"},
    "energy": {"1": "J joule joules", "1000": "kJ kilojoule kilojoules"},
    "power": {"1": "W watt watts", "1000": "kW kilowatt kilowatts", "1000000": "MW megawatt megawatts"},
    "pressure": {"1": "Pa pascal pascals", "1000": "kPa"},
    "voltage": {"1": "V volt volts", "1000": "kV"},
    "current": {"1": "A amp amps ampere amperes", "1/1000": "mA"},
    "resistance": {"1": "Ω ohm ohms"},
    "frequency": {"1": "Hz hertz", "1000": "kHz", "1000000": "MHz", "1000000000": "GHz"},
    "amount": {"1": "mol mole moles"},
    "kitchen": {"1": "cup cups", "2": "pint pints", "4": "quart quarts", "16": "gallon gallons"},
}
SPEEDS = {"1609344/3600000": "mph", "1000/3600": "kph kmh"}
LITERS = {"1/1000": "L l liter liters litre litres", "1/1000000": "mL ml milliliter milliliters millilitre millilitres"}


class Unit(NamedTuple):
    """The dimension that a unit measures, and the size of the unit."""

    dimension: dict[str, int]
    """Base dimension → power."""
    size: sympy.Expr


def _units() -> dict[str, Unit]:
    groups = [({"length": 1}, LENGTHS), ({"mass": 1}, MASSES), ({"time": 1}, TIMES)]
    groups += [({"length": 3}, LITERS), ({"length": 1, "time": -1}, SPEEDS)]
    groups += [({name: 1}, sizes) for name, sizes in OTHERS.items()]
    units: dict[str, Unit] = {}
    for dimension, sizes in groups:
        for size, names in sizes.items():
            for name in names.split():
                units[name] = Unit(dimension, sympy.Rational(size))
    return units


UNITS = _units()
_TEXT_COMMAND = re.compile(r"\\(?:text|textrm|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACE = r"(?:\\[,;:! ]|\\thinspace\b|\{\\[,;:!]\}|~|\s)"
_PUNCTUATION = re.compile(rf"(?:{_SPACE}|[.,;:])++")
_BOLD = re.compile(r"(\*{1,3}|__?)(?=\S)(?P<inner>.+)(?<=\S)\1")
_FORMULA = re.compile(r"(?P<mark>\$\$?)(?P<inner>[^$]+)(?P=mark)")
_ELLIPSIS = re.compile(r"\\[lcd]?dots[bcimo]?(?![A-Za-z])|\.{3}|…")
_THOUSANDS = re.compile(rf"(?<![\d.,])(\d{{1,3}})((?:{_SPACE}+\d{{3}})+)(?!\d)")
_QUANTITY = re.compile(r"(?P<value>.*?[\d)}])\s*(?P<unit>[A-Za-zµΩ°¢€£][A-Za-zµΩ°¢€£\d\s/^{}*·-]*)")
_FACTOR = re.compile(
    r"(?P<before>square|sq|cubic)?\s*(?P<name>[^\s\d^*·/]+)\s*(?:\^\s*\{?(?P<power>-?\d)\}?)?\s*(?P<after>squared|cubed)?"
)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "squared": 2, "cubed": 3}


class Session:
    """Compares answers."""

    def compare(self, answer: str, response: str, strict: bool = True) -> bool | None:
        """Return whether two answers are equal; None if the right answer cannot be parsed.

        Args:
            strict: apply the rules of this module; False leaves the decision to math-verify.
        """
        if not strict:
            expected = _parsed(answer)
            return bool(verify(expected, _parsed(response), timeout_seconds=None)) if expected else None
        answer, response = _tidied(answer), _tidied(response)
        expected = _parsed(answer)
        if not expected:
            return None
        if _ELLIPSIS.search(answer) and re.search("[,:;]", answer) and "=" not in answer:
            return _terms(answer) == _terms(response)
        if _is_ratio(answer) != _is_ratio(response):
            return False
        right, measured = _quantity(answer), _quantity(response)
        if right is None or measured is None:
            return _are_equal(expected, _parsed(response)) or _are_equal_without_percent(answer, response)
        (right_value, right_unit), (value, unit) = right, measured
        if right_unit.dimension != unit.dimension:
            return False
        if re.sub(_SPACE, "", answer) == re.sub(_SPACE, "", response):
            return True
        # Sets and equations cannot be converted. Of several quantities, math-verify reads only the first one, but all angles.
        earlier_parts = [*right_value.split(",")[:-1], *value.split(",")[:-1]]
        is_readable = not any(map(_quantity, earlier_parts)) or r"^\circ" in answer
        if right_unit.size == unit.size and is_readable and _are_equal(expected, _parsed(response)):
            return True
        return _are_equal(_converted(right_value, right_unit), _converted(value, unit))


def setup() -> None:
    """Import everything before the first time limit starts; sympy imports its simplification when it is first used."""
    Session().compare("(x+1)^2", "x^2+2x+1")


def _parsed(text: str) -> list[Any]:
    # No time limits here: math-verify's use signals, which C code may delay. The worker's limit ends the process.
    return parse(f"\\boxed{{{text}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _tidied(text: str) -> str:
    """Return an answer without punctuation at its end and without spaces between thousands."""
    text = re.sub(r"\\colon\b|\\mathbin\s*\{:\}", ":", text).strip()
    formula = _FORMULA.fullmatch(text)
    text = formula["inner"].strip() if formula else text
    text = text if text.endswith("..") else _without_end(text)
    bold = _BOLD.fullmatch(text)
    text = bold["inner"] if bold else text.removesuffix("**")
    text = text if text.endswith("..") else _without_end(text)
    return _THOUSANDS.sub(lambda number: number[1] + re.sub(r"\D", "", number[2]), text)


def _without_end(text: str) -> str:
    """Return a text without punctuation and spaces at its end."""
    # Each run is read once. A pattern that ends with "$" would search a run in the middle again from each of its characters.
    for run in _PUNCTUATION.finditer(text):
        if run.end() == len(text):
            return text[: run.start()]
    return text


def _terms(text: str) -> str:
    """Return a normalized sequence with an ellipsis, because math-verify reads only a part of such sequences."""
    return re.sub(rf"{_SPACE}|\\(?:left|right)\b", "", _ELLIPSIS.sub("…", text))


def _are_equal(expected: list[Any], answers: list[Any]) -> bool:
    # math-verify ignores units and rounds to six decimal places, so 2^-98 equaled 2^-99 (docs/decisions/answers.md).
    for right, value in product(expected, answers):
        if bool(verify(right, value, timeout_seconds=None)) and not _differ(right, value):
            return True
    return False


def _are_equal_without_percent(answer: str, response: str) -> bool:
    """Return whether two answers are equal without the percent sign that only one of them has: 50% is 50 and 0.5."""
    if ("%" in answer) == ("%" in response):
        return False
    return _are_equal(_parsed(re.sub(r"\\?%", "", answer)), _parsed(re.sub(r"\\?%", "", response)))


def _differ(right: object, answer: object) -> bool:
    """Return whether two values that math-verify accepts as equal have a ratio other than 1."""
    if isinstance(right, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return any(all(_differ(element, counterpart) for counterpart in answer.args) for element in right.args)
    if isinstance(right, sympy.Tuple) and isinstance(answer, sympy.Tuple):
        return any(map(_differ, right.args, answer.args))
    if not isinstance(right, sympy.Expr) or not isinstance(answer, sympy.Expr) or right == answer:
        return False
    if right.free_symbols != answer.free_symbols:
        return False  # one of them is a name: \text{13}
    # Equal expressions are equal at every point; the values are arbitrary and positive, as for lengths.
    symbols = sorted(right.free_symbols, key=str)
    point: list[tuple[Any, Any]] = [
        (symbol, sympy.Rational(17 + 12 * number, 7)) for number, symbol in enumerate(symbols)
    ]
    right_value, answer_value = (expression.subs(point).doit().evalf(DIGITS) for expression in (right, answer))
    if not all(isinstance(value, sympy.Float) or value == 0 for value in (right_value, answer_value)):
        return False
    if answer_value == 0:
        return bool(right_value != 0)
    has_decimal = right.has(sympy.Float) or answer.has(sympy.Float)
    tolerance = DECIMAL_TOLERANCE if has_decimal else EXACT_TOLERANCE
    return bool(abs(right_value / answer_value - 1) > tolerance)


def _is_ratio(text: str) -> bool:
    """Return whether a text is a ratio, such as "3 : 4"."""
    terms = text.split(":")
    return len(terms) > 1 and "=" not in text and all(re.search(r"\d", term) for term in terms)


def _quantity(text: str) -> tuple[str, Unit] | None:
    """Return the value and the unit of a quantity; None if the text is not a quantity, or its unit is not in `UNITS`."""
    if len(text) > MAX_QUANTITY_CHARS:
        return None
    plain = _TEXT_COMMAND.sub(r" \1 ", text)
    plain = re.sub(r"(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*(?:([CF])\b)?", r"°\1", plain)
    plain = re.sub(r"\\cdot\b", "·", re.sub(_SPACE, " ", plain)).strip()
    if money := re.fullmatch(r"\\?([$€£])\s*(.+)", plain):
        return money[2], UNITS[money[1]]
    quantity = _QUANTITY.fullmatch(plain.removesuffix("\\$").strip())
    if plain.endswith("$") and quantity is None:
        return plain.removesuffix("$").removesuffix("\\"), UNITS["$"]
    if quantity is None:
        return None
    unit = _unit(quantity["unit"])
    return None if unit is None else (quantity["value"], unit)


def _unit(text: str) -> Unit | None:
    """Return the unit that a text names, such as "km/h" or "square meters"; None if a part of it is not in `UNITS`."""
    powers: Counter[str] = Counter()
    size: Any = sympy.Integer(1)
    for position, units_text in enumerate(re.split(r"/|\bper\b", text)):
        end = 0
        for factor in _FACTOR.finditer(units_text.strip()):
            if re.sub(r"[\s*·]", "", units_text.strip()[end : factor.start()]):
                return None
            end = factor.end()
            unit = UNITS.get(factor["name"]) or UNITS.get(factor["name"].lower())
            if unit is None:
                return None
            power_word = factor["before"] or factor["after"]
            power = int(factor["power"] or _POWERS.get(power_word, 1))
            if position:  # after "/" or "per"
                power = -power
            size *= unit.size**power
            for dimension, count in unit.dimension.items():
                powers[dimension] += count * power
        if units_text.strip()[end:].strip() or not end:
            return None
    return Unit({dimension: power for dimension, power in powers.items() if power}, size)


def _converted(value: str, unit: Unit) -> list[Any]:
    """Return a value in base units."""
    return [part * unit.size for part in _parsed(value) if isinstance(part, sympy.Expr)]
