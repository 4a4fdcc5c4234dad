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
from rove.viewer import api
from rove.viewer.format import caveats, number, signed, sparkline
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

    # The input field at the bottom

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


PAGE = 100
"""Rollouts of a page."""
RUN_COLUMNS = ("", "run", "status", "reward", "rollouts", "tags")
ROLLOUT_COLUMNS = ("rollout", "reward", "ended by", "turns", "tokens", "time", "tags")
SORTS = ("line", "reward", "turns", "completion_tokens", "seconds")
FACETS = ("tag", "noted", "env", "stop", "error", "truncated", "turns")


class Runs(List):
    """The table of runs."""

    columns = RUN_COLUMNS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("space", "pick", "Pick"),
        Binding("c", "compare", "Compare picked"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.wanted = ""
        self.picked: list[str] = []

    def show(self) -> None:
        """Every run that has the text in what is told of it, the newest first."""
        found = self.app.ask("runs")
        runs = sorted(found["runs"], key=lambda run: -run["changed"])
        told = ("name", "kind", "env", "model", "status", "tags")
        shown = [run for run in runs if self.wanted.lower() in " ".join(str(run.get(k, "")) for k in told).lower()]
        title = f"Runs in {found['folder']}: {len(shown)} of {len(runs)}" + f" with '{self.wanted}'" * bool(self.wanted)
        self.fill(Text(inert(title)), ((run["name"], run_cells(run, run["name"] in self.picked)) for run in shown))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a run."""
        self.app.push_screen(Rollouts(str(event.row_key.value)))

    def action_filter(self) -> None:
        """Choose runs by a text."""

        def choose(value: str) -> None:
            self.wanted = value

        self.ask_for("text in name, environment, model, status or tags", self.wanted, choose)

    def action_pick(self) -> None:
        """Pick a run, or no longer."""
        name = self.current
        if name:
            self.picked = [one for one in self.picked if one != name] + [name] * (name not in self.picked)
            self.draw()

    def action_compare(self) -> None:
        """Compare the first two that are picked."""
        if len(self.picked) < 2:
            self.tell("pick two runs with the space bar first")
        else:
            self.app.push_screen(Comparison(*self.picked[:2]))


class Rollouts(List):
    """The rollouts of a run, and how its training goes."""

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
        self.wanted = Filter()
        self.sort = 0
        self.first = 0
        self.total = 0

    @property
    def order(self) -> list[tuple[str, Any]]:
        """Which rollouts, in which order, as parameters."""
        name = SORTS[self.sort // 2]
        return [("run", self.run), *self.wanted.pairs, ("sort", name), ("order", ("up", "down")[self.sort % 2])]

    def show(self) -> None:
        """A page of rollouts."""
        about = self.app.ask("run", run=self.run)
        found = self.app.ask("rollouts", *self.order, offset=self.first, limit=PAGE)
        self.total = found["total"]
        title = heading(about, self.wanted, found, self.first, SORTS[self.sort // 2], bool(self.sort % 2))
        if about["steps"]:
            title.append("\n").append(self._training())
        self.fill(title, ((str(row["line"]), rollout_cells(row)) for row in found["rows"]))

    def _training(self) -> Text:
        """A curve, and the last alert."""
        found = self.app.ask("metrics", run=self.run)
        name = "reward/mean" if found["kind"] == "rl" else "loss"
        values = [row[name] for row in found["rows"] if isinstance(row.get(name), (int, float))]
        last = found["alerts"][-1:]
        words = f"step {len(found['rows'])}: {name} {number(values[-1] if values else None)} {sparkline(values, 30)}"
        told = Text(inert(words))
        return told.append(f"\nalert: {inert(str(last[0].get('text')))[:200]}", "yellow") if last else told

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a rollout."""
        place = self.first + self.query_one(DataTable).cursor_row
        self.app.push_screen(Rollout(self.run, int(str(event.row_key.value)), place, self.order))

    def action_filter(self) -> None:
        """Choose rollouts by their values."""
        self.ask_for("like: reward>=0.5 stop=answered tag=good error=", str(self.wanted), self.choose)

    def choose(self, text: str) -> None:
        """Choose by a filter as it is typed; the one before stays where it is none.

        Raises:
            ConfigError: it cannot be understood.
        """
        about = self.app.ask("run", run=self.run)
        wanted = Filter.read(text, about["sorts"])
        self.app.ask("rollouts", ("run", self.run), *wanted.pairs, limit=1)
        self.wanted, self.first = wanted, 0

    def action_facets(self) -> None:
        """Choose rollouts by values that there are."""
        try:
            counted = [
                (name, self.app.ask("facet", ("run", self.run), *self.wanted.pairs, ("name", name))) for name in FACETS
            ]
        except (Error, OSError) as error:
            self.tell(str(error))
            return
        self.app.push_screen(Facets(counted), self.chosen)

    def chosen(self, pair: tuple[str, str] | None) -> None:
        """Add a facet's value to the filter, or take it out."""
        if pair is not None:
            self.wanted, self.first = self.wanted.toggled(pair), 0
        self.draw()

    def action_sort(self) -> None:
        """The next order: every column upwards, then downwards."""
        self.sort, self.first = (self.sort + 1) % (2 * len(SORTS)), 0
        self.draw()

    def action_page(self, by: int) -> None:
        """The next page, or the one before."""
        if 0 <= self.first + by * PAGE < max(1, self.total):
            self.first += by * PAGE
            self.draw()


class Facets(ModalScreen[tuple[str, str] | None]):
    """Values to choose rollouts by, with how many have them.

    Args:
        counted: names, and answers of `api.facet`.
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
        """All values of all facets."""
        lines = [f"{count:>7,}  {key[3:]} = {inert(value) or 'none'}" for key, value, count in self.entries]
        options = [Option(Text(line, no_wrap=True, overflow="ellipsis")) for line in lines]
        yield OptionList(*options or [Option("every rollout has the same values", disabled=True)])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose by one."""
        key, value, _ = self.entries[event.option_index]
        self.dismiss((key, value))


class Rollout(Page):
    """A rollout as a chat.

    Args:
        run: its name.
        line: of rollouts.jsonl.
        place: where it stands in the list that it was opened from.
        order: parameters of that list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "turn(1)", "Next"),
        Binding("k", "turn(-1)", "Previous"),
        Binding("t", "tag", "Tag"),
        Binding("n", "note", "Note"),
    ]

    def __init__(self, run: str, line: int, place: int, order: list[tuple[str, Any]]):
        super().__init__()
        self.run, self.line, self.place, self.order = run, line, place, order
        self.found: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """What came of it, then what was said."""
        yield VerticalScroll(id="chat")
        yield Static(classes="trouble")
        yield Input()
        yield Footer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tags and notes only where people may write them."""
        return self.app.shelf.annotate if action in ("tag", "note") else True

    def show(self) -> None:
        """The rollout, drawn again only where something of it has changed."""
        found = self.app.ask("rollout", run=self.run, line=self.line)
        if found == self.found:
            return
        self.found = found
        chat = self.query_one("#chat", VerticalScroll)
        chat.remove_children()
        chat.mount(Static(outcome(found), classes="title"))
        chat.mount_all(Static(text, classes=f"message {role}") for role, text in messages(found))
        chat.scroll_home(animate=False)
        if not self.query_one(Input).has_class("asked"):
            chat.focus()

    def action_turn(self, by: int) -> None:
        """The rollout after or before this one in the list."""
        if self.place + by < 0:
            self.tell("this is the first one")
            return
        rows = self.app.ask("rollouts", *self.order, offset=self.place + by, limit=1)["rows"]
        if not rows:
            self.tell("this is the last one")
            return
        self.line, self.place = rows[0]["line"], self.place + by
        self.draw()

    def action_tag(self) -> None:
        """Add a tag, or take one away."""

        def change(value: str) -> None:
            tag = value.strip()
            if tag:
                self.write({"remove" if tag in self.found["tags"] else "add": [tag]})

        self.ask_for("a tag to add, or one that is there to take away", "", change)

    def action_note(self) -> None:
        """Write a note."""
        self.ask_for("a note", self.found.get("note", ""), lambda value: self.write({"note": value}))

    def write(self, wish: Mapping[str, Any]) -> None:
        """Keep what somebody says of it."""
        api.say(self.app.shelf, api.Wish(self.run, self.line, **wish))

    def close_field(self) -> None:
        """Take the field away."""
        super().close_field()
        self.query_one("#chat").focus()


class Comparison(List):
    """Two runs side by side."""

    columns = ("value", "first", "second", "difference", "95 % interval", "")

    def __init__(self, a: str, b: str):
        super().__init__()
        self.names = a, b

    def show(self) -> None:
        """What both have, and which way it went where that can be told."""
        found = self.app.ask("compare", a=self.names[0], b=self.names[1])
        rows = [found["main"], *found["others"]]
        title = f"{self.names[0]} and {self.names[1]}\n{found['verdict']}\n{caveats(rows)}".rstrip()
        self.fill(Text(inert(title)), ((str(i), _compared(one)) for i, one in enumerate(rows)))


def _compared(one: Mapping[str, Any]) -> list[Text]:
    told = {1: "higher", 0: "", -1: "lower"}[one["direction"]]
    values = (inert(one["name"]), number(one["a"]), number(one["b"]), signed(one["difference"]), estimate(one), told)
    return [Text(value) for value in values]


class Terminal(Viewer):
    """The viewer in a terminal.

    Args:
        shelf: the runs.
    """

    def on_mount(self) -> None:
        """Begin with the table of runs."""
        self.push_screen(Runs())
