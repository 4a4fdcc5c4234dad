"""The console shows untrusted text literally: neither control characters nor markup have an effect."""

from __future__ import annotations

import io

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rove.stages.reporter import ConsoleReporter
from rove.utils.console import SafeConsole, styled

HOSTILE = "a\x1b[2Jb\x9b1mc\rd\u202ee [bold]f[/bold] :tada: [link=http://x.example]g[/link]"
SHOWN = "a\\x1b[2Jb\\x9b1mc\\x0dd\\u202ee [bold]f[/bold] :tada: [link=http://x.example]g[/link]"


def printed(renderable: object, **options: object) -> str:
    out = io.StringIO()
    SafeConsole(file=out, width=200, **options).print(renderable, soft_wrap=True)
    return out.getvalue()


def test_a_string_is_shown_as_it_is():
    assert printed(HOSTILE) == f"{SHOWN}\n"


@pytest.mark.parametrize("renderable", [Text("x\x1b[2Jy"), Panel(Text("x\x1b[2Jy")), Panel("x\x1b[2Jy")])
def test_no_renderable_passes_a_control_character(renderable: object):
    text = printed(renderable)
    assert "\x1b" not in text
    assert "x\\x1b[2Jy" in text


def test_a_table_of_hostile_texts_stays_aligned():
    table = Table("name", HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row("x", HOSTILE)
    table.add_row("y", "plain")
    lines = printed(table).splitlines()
    assert SHOWN in lines[0]
    assert len({len(line) for line in lines if line[0] in "┏┃┡│└"}) == 1


def test_styles_and_live_displays_of_rove_work_on_a_terminal():
    text = printed(styled((HOSTILE, "red"), " plain"), force_terminal=True, color_system="standard")
    assert text == f"\x1b[31m{SHOWN}\x1b[0m plain\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_shows_hostile_names_and_status_as_text(is_terminal: bool):
    out = io.StringIO()
    console = SafeConsole(file=out, width=200, force_terminal=is_terminal, color_system=None)
    with ConsoleReporter(console).progress(f"title {HOSTILE}", 1) as report:
        report(1, f"words {HOSTILE}")
    with ConsoleReporter(console).working(f"loading {HOSTILE}"):
        pass
    text = out.getvalue()
    for word in ("title", "words", "loading"):
        assert f"{word} {SHOWN}" in text
    for sequence in ("\x1b[2J", "\x9b", "\u202e"):
        assert sequence not in text
