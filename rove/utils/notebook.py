"""Show results in a notebook."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Protocol

from rove.core.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

    from rove.utils.figure import NotebookFigure


class Printer(Protocol):
    """The part of IPython's printer that is used here."""

    def text(self, obj: str) -> None:
        """Print a text as it is."""
        ...


class ShownAsText:
    """Base class of results that IPython shows in the same form as `print`; `repr` contains all fields."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        """Print the text; IPython calls this method."""
        printer.text(str(self).rstrip("\n"))


def image(figure: NotebookFigure) -> str:
    """Return a figure as an HTML image."""
    return f'<img src="data:image/png;base64,{base64.b64encode(figure.png()).decode()}">'


def data_frame(rows: Any, **options: Any) -> DataFrame:
    """Return rows as a `pandas.DataFrame`, with options of its constructor.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        # pandas is no dependency of rove: only the methods `to_pandas` need it.
        from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise ConfigError(
            "to_pandas() needs the package 'pandas', which is not installed: pip install pandas"
        ) from None
    return DataFrame(rows, **options)
