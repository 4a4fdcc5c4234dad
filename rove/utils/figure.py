"""The figures of results. Importing this module imports matplotlib, which is part of the extra `train`."""

# Many methods of matplotlib have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 70
"""Dots per inch in a notebook."""


class NotebookFigure(Figure):
    """A figure that a notebook shows as an image, even without `%matplotlib inline`.

    It is not a pyplot figure, because pyplot would choose a window system for the whole process.
    """

    def png(self) -> bytes:
        """Return the figure as a PNG in the size for a notebook."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        """Return the image; IPython calls this method."""
        return self.png()
