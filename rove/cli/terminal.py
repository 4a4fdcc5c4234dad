"""`rove view --terminal`: the viewer in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from rove.cli.terminal_format import Filter, estimate, heading, inert, messages, outcome, rollout_cells, run_cells
from rove.core.errors import Error
from rove.statistics.format import caveats, number, signed, sparkline
from rove.viewer import api
from rove.viewer.run_store import RunStore

REFRESH_S = 2.0
"""Seconds between refreshes of a screen."""


class Viewer(App[None]):
    """Base of the terminal viewer: configuration, and access to the viewer's API.

    Args:
        store: The runs.
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
    Input.prompting { display: block; }
    .message { height: auto; margin: 0 0 1 0; padding: 0 1; border-left: thick $secondary; }
    .user { border-left: thick $primary; } .assistant { border-left: thick $success; } .tool { border-left: thick $warning; }
    ModalScreen { align: center middle; }
    OptionList { width: 72; max-width: 90%; height: auto; max-height: 80%; }
    """

    def __init__(self, store: RunStore):
        super().__init__()
        self.store = store

    def fetch(self, name: str, *pairs: tuple[str, Any], **params: Any) -> dict[str, Any]:
        """Return the result of an endpoint of `rove.viewer.api`.

        Raises:
            Error: The query is invalid.
            OSError: A file of the run cannot be read.
        """
        given = [*pairs, *params.items()]
        return api.ENDPOINTS[name](self.store, api.QueryParams([(key, str(value)) for key, value in given]))


class Page(Screen[None]):
    """A screen that refreshes itself and shows errors in its last line."""

    _failed = False
    app: Viewer  # pyright: ignore[reportIncompatibleMethodOverride]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def on_mount(self) -> None:
        """Draw the screen, and refresh it regularly."""
        self.draw()
        self.set_interval(REFRESH_S, self.refresh_page)

    def refresh_page(self) -> None:
        """Redraw the screen if it is visible."""
        if self.app.screen is self:
            self.draw(again=True)

    def draw(self, again: bool = False) -> None:
        """Query and show; a refresh keeps error messages that were caused by a key."""
        try:
            self.show()
        except (Error, OSError) as error:
            self.show_error(str(error))
            self._failed = True
            return
        if self._failed or not again:
            self.show_error("")
        self._failed = False

    def show(self) -> None:
        """Fill the screen."""
        raise NotImplementedError

    def show_error(self, message: str) -> None:
        """Show an error message; "" clears it."""
        self.query_one(".trouble", Static).update(Text(inert(message)))

    def action_back(self) -> None:
        """Close the input field, or leave the screen."""
        field = self.query(Input)
        if field and field.first().has_class("prompting"):
            self.close_field()
        elif len(self.app.screen_stack) > 2:  # below the list of runs is the app's empty screen
            self.app.pop_screen()

    # The input field at the bottom

    def prompt(self, placeholder: str, value: str, then: Callable[[str], None]) -> None:
        """Show the input field; call `then` with the text that is entered."""
        field = self.query_one(Input)
        self._then = then
        field.placeholder, field.value = placeholder, value
        field.add_class("prompting")
        field.focus()

    def close_field(self) -> None:
        """Hide the input field."""
        self.query_one(Input).remove_class("prompting")
        self.set_focus(self.query(DataTable).first() if self.query(DataTable) else None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Run the callback of the input field."""
        self.close_field()
        try:
            self._then(event.value)
        except (Error, OSError) as error:
            self.show_error(str(error))
            return
        self.draw()


class List(Page):
    """A screen with a table."""

    columns: Sequence[str]

    def compose(self) -> ComposeResult:
        """Compose title, table, error line, input field and key bindings."""
        yield Static(classes="title")
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)
        table.add_columns(*self.columns)
        yield table
        yield Static(classes="trouble")
        yield Input()
        yield Footer()

    def fill(self, title: Text, rows: Iterable[tuple[str, Iterable[Text]]]) -> None:
        """Show rows by key; the cursor stays on its row."""
        table = self.query_one(DataTable)
        current = self.current
        self.query_one(".title", Static).update(title)
        table.clear()
        for key, cells in rows:
            table.add_row(*cells, key=key)
        if current in table.rows:
            table.move_cursor(row=table.get_row_index(current))

    @property
    def current(self) -> str:
        """The key of the row at the cursor; "" if the table is empty."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return ""
        return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)


PAGE = 100
"""Rollouts per page."""
RUN_COLUMNS = ("", "run", "status", "reward", "rollouts", "tags")
ROLLOUT_COLUMNS = ("rollout", "reward", "stop reason", "turns", "tokens", "time", "tags")
SORTS = ("line", "reward", "turns", "completion_tokens", "seconds")
FACETS = ("tag", "noted", "env", "stop", "error", "truncated", "turns")


class Runs(List):
    """The list of runs."""

    columns = RUN_COLUMNS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("space", "pick", "Pick"),
        Binding("c", "compare", "Compare picked"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.filter_text = ""
        self.picked: list[str] = []

    def show(self) -> None:
        """Show the runs that contain the filter text, newest first."""
        found = self.app.fetch("runs")
        runs = sorted(found["runs"], key=lambda run: -run["changed"])
        searched = ("name", "kind", "env", "model", "status", "tags")
        text = self.filter_text
        shown = [run for run in runs if text.lower() in " ".join(str(run.get(k, "")) for k in searched).lower()]
        title = f"Runs in {found['folder']}: {len(shown)} of {len(runs)}" + f" with '{text}'" * bool(text)
        self.fill(Text(inert(title)), ((run["name"], run_cells(run, run["name"] in self.picked)) for run in shown))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a run."""
        self.app.push_screen(Rollouts(str(event.row_key.value)))

    def action_filter(self) -> None:
        """Prompt for a filter text."""

        def apply(value: str) -> None:
            self.filter_text = value

        self.prompt("text in name, environment, model, status or tags", self.filter_text, apply)

    def action_pick(self) -> None:
        """Select or unselect a run for comparison."""
        name = self.current
        if name:
            self.picked = [one for one in self.picked if one != name] + [name] * (name not in self.picked)
            self.draw()

    def action_compare(self) -> None:
        """Compare the first two selected runs."""
        if len(self.picked) < 2:
            self.show_error("select two runs with the space bar first")
        else:
            self.app.push_screen(Comparison(*self.picked[:2]))


class Rollouts(List):
    """The rollouts of a run, and its training progress."""

    columns = ROLLOUT_COLUMNS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("f", "facets", "Facets"),
        Binding("s", "sort", "Sort"),
        Binding("n", "page(1)", "Next"),
        Binding("p", "page(-1)", "Previous"),
    ]

    def __init__(self, run: str):
        super().__init__()
        self.run = run
        self.filter = Filter()
        self.sort = 0
        self.first = 0
        self.total = 0

    @property
    def order(self) -> list[tuple[str, Any]]:
        """The filter and order as query parameters."""
        name = SORTS[self.sort // 2]
        return [("run", self.run), *self.filter.pairs, ("sort", name), ("order", ("up", "down")[self.sort % 2])]

    def show(self) -> None:
        """Show one page of rollouts."""
        about = self.app.fetch("run", run=self.run)
        found = self.app.fetch("rollouts", *self.order, offset=self.first, limit=PAGE)
        self.total = found["total"]
        title = heading(about, self.filter, found, self.first, SORTS[self.sort // 2], bool(self.sort % 2))
        if about["steps"]:
            title.append("\n").append(self._training())
        self.fill(title, ((str(row["line"]), rollout_cells(row)) for row in found["rows"]))

    def _training(self) -> Text:
        """Return the training curve and the last alert."""
        found = self.app.fetch("metrics", run=self.run)
        name = "reward/mean" if found["kind"] == "rl" else "loss"
        values = [row[name] for row in found["rows"] if isinstance(row.get(name), (int, float))]
        last = found["alerts"][-1:]
        line = f"step {len(found['rows'])}: {name} {number(values[-1] if values else None)} {sparkline(values, 30)}"
        text = Text(inert(line))
        return text.append(f"\nalert: {inert(str(last[0].get('text')))[:200]}", "yellow") if last else text

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a rollout."""
        position = self.first + self.query_one(DataTable).cursor_row
        self.app.push_screen(Rollout(self.run, int(str(event.row_key.value)), position, self.order))

    def action_filter(self) -> None:
        """Prompt for a filter."""
        self.prompt("for example: reward>=0.5 stop=answered tag=good error=", str(self.filter), self.apply_filter)

    def apply_filter(self, text: str) -> None:
        """Apply a filter; an invalid one changes nothing.

        Raises:
            ConfigError: The filter cannot be parsed.
        """
        about = self.app.fetch("run", run=self.run)
        parsed = Filter.read(text, about["sorts"])
        self.app.fetch("rollouts", ("run", self.run), *parsed.pairs, limit=1)
        self.filter, self.first = parsed, 0

    def action_facets(self) -> None:
        """Show the values by which rollouts can be filtered."""
        try:
            counted = [
                (name, self.app.fetch("facet", ("run", self.run), *self.filter.pairs, ("name", name)))
                for name in FACETS
            ]
        except (Error, OSError) as error:
            self.show_error(str(error))
            return
        self.app.push_screen(Facets(counted), self.toggle_facet)

    def toggle_facet(self, pair: tuple[str, str] | None) -> None:
        """Add a value to the filter, or remove it."""
        if pair is not None:
            self.filter, self.first = self.filter.toggled(pair), 0
        self.draw()

    def action_sort(self) -> None:
        """Switch to the next order: each column ascending, then descending."""
        self.sort, self.first = (self.sort + 1) % (2 * len(SORTS)), 0
        self.draw()

    def action_page(self, by: int) -> None:
        """Go to the next or previous page."""
        if 0 <= self.first + by * PAGE < max(1, self.total):
            self.first += by * PAGE
            self.draw()


class Facets(ModalScreen[tuple[str, str] | None]):
    """A dialog with filter values and the number of rollouts that have each.

    Args:
        counted: Names, and results of `api.facet`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back")]

    def __init__(self, counted: Sequence[tuple[str, Mapping[str, Any]]]):
        super().__init__()
        self.entries = [
            (f"is.{name}", "" if value is None else str(value), count)
            for name, facet in counted
            for value, count in facet["values"]
            if len(facet["values"]) > 1
        ]

    def compose(self) -> ComposeResult:
        """Compose the list of values."""
        lines = [f"{count:>7,}  {key[3:]} = {inert(value) or 'none'}" for key, value, count in self.entries]
        options = [Option(Text(line, no_wrap=True, overflow="ellipsis")) for line in lines]
        yield OptionList(*options or [Option("every rollout has the same values", disabled=True)])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close the dialog with the selected value."""
        key, value, _ = self.entries[event.option_index]
        self.dismiss((key, value))


class Rollout(Page):
    """A rollout as a chat.

    Args:
        run: Name of the run.
        line: Line in rollouts.jsonl.
        position: Position in the list from which it was opened.
        order: Query parameters of that list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "turn(1)", "Next"),
        Binding("k", "turn(-1)", "Previous"),
        Binding("t", "tag", "Tag"),
        Binding("n", "note", "Note"),
    ]

    def __init__(self, run: str, line: int, position: int, order: list[tuple[str, Any]]):
        super().__init__()
        self.run, self.line, self.position, self.order = run, line, position, order
        self.found: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """Compose the result and the messages."""
        yield VerticalScroll(id="chat")
        yield Static(classes="trouble")
        yield Input()
        yield Footer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow tags and notes only with --annotate."""
        return self.app.store.annotate if action in ("tag", "note") else True

    def show(self) -> None:
        """Show the rollout; redraw it only if it changed."""
        found = self.app.fetch("rollout", run=self.run, line=self.line)
        if found == self.found:
            return
        self.found = found
        chat = self.query_one("#chat", VerticalScroll)
        chat.remove_children()
        chat.mount(Static(outcome(found), classes="title"))
        chat.mount_all(Static(text, classes=f"message {role}") for role, text in messages(found))
        chat.scroll_home(animate=False)
        if not self.query_one(Input).has_class("prompting"):
            chat.focus()

    def action_turn(self, by: int) -> None:
        """Go to the next or previous rollout in the list."""
        if self.position + by < 0:
            self.show_error("this is the first rollout")
            return
        rows = self.app.fetch("rollouts", *self.order, offset=self.position + by, limit=1)["rows"]
        if not rows:
            self.show_error("this is the last rollout")
            return
        self.line, self.position = rows[0]["line"], self.position + by
        self.draw()

    def action_tag(self) -> None:
        """Prompt for a tag to add or remove."""

        def change(value: str) -> None:
            tag = value.strip()
            if tag:
                self.write({"remove" if tag in self.found["tags"] else "add": [tag]})

        self.prompt("a tag to add or remove", "", change)

    def action_note(self) -> None:
        """Prompt for a note."""
        self.prompt("a note", self.found.get("note", ""), lambda value: self.write({"note": value}))

    def write(self, change: Mapping[str, Any]) -> None:
        """Store a tag or note."""
        api.add_annotation(self.app.store, api.AnnotationRequest(self.run, self.line, **change))

    def close_field(self) -> None:
        """Hide the input field."""
        super().close_field()
        self.query_one("#chat").focus()


class Comparison(List):
    """Two runs side by side."""

    columns = ("value", "first", "second", "difference", "95% interval", "")

    def __init__(self, a: str, b: str):
        super().__init__()
        self.names = a, b

    def show(self) -> None:
        """Show the common values, and the direction of significant differences."""
        found = self.app.fetch("compare", a=self.names[0], b=self.names[1])
        rows = [found["main"], *found["others"]]
        title = f"{self.names[0]} and {self.names[1]}\n{found['verdict']}\n{caveats(rows)}".rstrip()
        self.fill(Text(inert(title)), ((str(i), _compared(one)) for i, one in enumerate(rows)))


def _compared(one: Mapping[str, Any]) -> list[Text]:
    direction = {1: "higher", 0: "", -1: "lower"}[one["direction"]]
    values = (
        inert(one["name"]),
        number(one["a"]),
        number(one["b"]),
        signed(one["difference"]),
        estimate(one),
        direction,
    )
    return [Text(value) for value in values]


class Terminal(Viewer):
    """The viewer in a terminal.

    Args:
        store: The runs.
    """

    def on_mount(self) -> None:
        """Show the list of runs."""
        self.push_screen(Runs())
