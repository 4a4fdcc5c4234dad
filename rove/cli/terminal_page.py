"""What the terminal's pages have in common: they ask what the browser's pages ask, and are drawn anew now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from rove.cli.terminal_format import inert
from rove.core.errors import Error
from rove.viewer import api
from rove.viewer.run_store import RunStore

PERIOD = 2.0
"""Seconds after which what is shown is asked anew."""


class Viewer(App[None]):
    """The viewer in a terminal, without a page.

    Args:
        shelf: the runs.
    """

    TITLE = "rove"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]
    CSS = """
    Screen { layers: base over; }
    .title { height: auto; padding: 0 1; background: $panel; }
    .trouble { height: auto; color: $error; padding: 0 1; }
    DataTable { height: 1fr; }
    Input { dock: bottom; display: none; }
    Input.asked { display: block; }
    .message { height: auto; margin: 0 0 1 0; padding: 0 1; border-left: thick $secondary; }
    .user { border-left: thick $primary; } .assistant { border-left: thick $success; } .tool { border-left: thick $warning; }
    ModalScreen { align: center middle; }
    OptionList { width: 72; max-width: 90%; height: auto; max-height: 80%; }
    """

    def __init__(self, shelf: RunStore):
        super().__init__()
        self.shelf = shelf

    def ask(self, name: str, *pairs: tuple[str, Any], **params: Any) -> dict[str, Any]:
        """An answer of `rove.viewer.api`.

        Raises:
            Error: why there is none.
            OSError: a file of the run cannot be read.
        """
        given = [*pairs, *params.items()]
        return api.ENDPOINTS[name](self.shelf, api.Asked([(key, str(value)) for key, value in given]))


class Page(Screen[None]):
    """A screen that is drawn anew now and then; what goes wrong is shown on it."""

    _failed = False
    app: Viewer  # pyright: ignore[reportIncompatibleMethodOverride]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def on_mount(self) -> None:
        """Draw it, and go on drawing it."""
        self.draw()
        self.set_interval(PERIOD, self.redraw)

    def redraw(self) -> None:
        """Draw it anew, if anybody is looking at it."""
        if self.app.screen is self:
            self.draw(again=True)

    def draw(self, again: bool = False) -> None:
        """Ask, and show; what a key has made wrong stays told when nobody but the clock asks again."""
        try:
            self.show()
        except (Error, OSError) as error:
            self.tell(str(error))
            self._failed = True
            return
        if self._failed or not again:
            self.tell("")
        self._failed = False

    def show(self) -> None:
        """What a page shows."""
        raise NotImplementedError

    def tell(self, trouble: str) -> None:
        """Say what went wrong; "" = nothing did."""
        self.query_one(".trouble", Static).update(Text(inert(trouble)))

    def action_back(self) -> None:
        """Leave a field, or the page."""
        field = self.query(Input)
        if field and field.first().has_class("asked"):
            self.close_field()
        elif len(self.app.screen_stack) > 2:  # the app's own, empty one is below that of the runs
            self.app.pop_screen()

    # a field at the bottom

    def ask_for(self, words: str, value: str, then: Callable[[str], None]) -> None:
        """Ask for a line of text."""
        field = self.query_one(Input)
        self._then = then
        field.placeholder, field.value = words, value
        field.add_class("asked")
        field.focus()

    def close_field(self) -> None:
        """Take the field away."""
        self.query_one(Input).remove_class("asked")
        self.set_focus(self.query(DataTable).first() if self.query(DataTable) else None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do what the field was asked for."""
        self.close_field()
        try:
            self._then(event.value)
        except (Error, OSError) as error:
            self.tell(str(error))
            return
        self.draw()


class List(Page):
    """A page of a table."""

    columns: Sequence[str]

    def compose(self) -> ComposeResult:
        """Title, table, what went wrong, keys."""
        yield Static(classes="title")
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)
        table.add_columns(*self.columns)
        yield table
        yield Static(classes="trouble")
        yield Input()
        yield Footer()

    def fill(self, title: Text, rows: Iterable[tuple[str, Iterable[Text]]]) -> None:
        """Show rows by their keys, the cursor staying on the key where it is."""
        table = self.query_one(DataTable)
        here = self.current
        self.query_one(".title", Static).update(title)
        table.clear()
        for key, cells in rows:
            table.add_row(*cells, key=key)
        if here in table.rows:
            table.move_cursor(row=table.get_row_index(here))

    @property
    def current(self) -> str:
        """The key of the row where the cursor is; "" where there is none."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return ""
        return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)
