"""Results in a notebook. IPython is not installed for the tests: they call the methods that IPython calls."""

# The methods that IPython calls are private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import base64

import pytest

import rove
from rove.audit.findings import Report
from rove.core.findings import Finding
from rove.utils.notebook import ShownAsText, image
from tests.statistics.test_result import make_result
from tests.statistics.test_summary import scored

PNG = b"\x89PNG\r\n\x1a\n"
HEDGING = Finding("hedging", "a reply with all answers earns 0.5", rate=(0.5, 0.4, 0.6), floor=0.1, completion="1 2 3")
REPORT = Report(
    env="sums", findings=[HEDGING, Finding("length", "long replies earn more")], checks=["hedging", "length"]
)


class Printer:
    """IPython's printer, which collects the text."""

    def __init__(self) -> None:
        self.content = ""

    def text(self, obj: str) -> None:
        self.content += obj


def shown(result: ShownAsText) -> str:
    printer = Printer()
    result._repr_pretty_(printer, cycle=False)
    return printer.content


def test_results_are_shown_as_print_shows_them() -> None:
    records = [scored("a", 1.0), scored("b", 0.0)]
    for result in (make_result(), rove.compare(records, records), REPORT):
        assert shown(result) == str(result).rstrip("\n")
        assert shown(result) != repr(result)


def test_figures_are_shown_as_images() -> None:
    pytest.importorskip("matplotlib")
    figure = make_result().plot()
    assert figure._repr_png_().startswith(PNG)
    content = image(figure).removeprefix('<img src="data:image/png;base64,').removesuffix('">')
    assert base64.b64decode(content).startswith(PNG)


def test_a_frame_has_a_row_per_finding_of_an_audit() -> None:
    pandas = pytest.importorskip("pandas")
    frame = REPORT.to_pandas()
    assert list(frame["check"]) == ["hedging", "length"]
    assert [frame[name][0] for name in ("rate", "low", "high", "floor")] == [0.5, 0.4, 0.6, 0.1]
    assert pandas.isna(frame["rate"][1])
    assert list(Report(env="sums").to_pandas().columns) == list(frame.columns)


def test_an_error_that_its_message_explains_has_no_traceback() -> None:
    with pytest.raises(rove.ConfigError) as raised:
        rove.load_environment("no_such_environment")
    lines = raised.value._render_traceback_()
    assert lines[0].startswith("ConfigError: no environment 'no_such_environment'")
    assert not hasattr(rove.ModelError("failed"), "_render_traceback_")
