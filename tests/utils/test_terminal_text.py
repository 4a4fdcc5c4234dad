"""Text that rove did not write, on its way to a terminal."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import tomllib
import warnings

import pytest
from tiers import each_row

from rove.utils import terminal_text
from rove.utils.terminal_text import inert, inert_json, inert_toml, make_encodable, make_logs_inert

HOSTILE = {
    "color": ("\x1b[31mred", r"\x1b[31mred"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07", r"\x1b]52;c;cm0gLXJm\x07"),
    "link": ("\x1b]8;;http://a.example\x1b\\b\x1b]8;;\x1b\\", "\\x1b]8;;http://a.example\\x1b\\b\\x1b]8;;\\x1b\\"),
    "C1 control sequence": ("\x9b2J", r"\x9b2J"),
    "C1 operating system command": ("\x9d0;title\x9c", r"\x9d0;title\x9c"),
    "carriage return": ("reward 0\rreward 1", r"reward 0\x0dreward 1"),
    "backspace and delete": ("no\x08\x08yes\x7f", r"no\x08\x08yes\x7f"),
    "bidirectional override": ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
    "Arabic letter mark": ("\u061c", r"\u061c"),
    "line separators": ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    "tag character": ("a\U000e0041b", r"a\U000e0041b"),
    "byte-order mark, soft hyphen": ("\ufeffa\u00adb", r"\ufeffa\xadb"),
    "surrogate": ("a\udc1bb", r"a\udc1bb"),
    "null and vertical tab": ("a\0b\x0b\x0cc", r"a\x00b\x0b\x0cc"),
}


@pytest.mark.parametrize(("text", "escaped"), HOSTILE.values(), ids=HOSTILE)
def test_control_characters_are_shown_as_text(text: str, escaped: str):
    assert inert(text) == escaped


@each_row(
    "text",
    [
        "plain",
        "",
        "two\nlines\tand a tab",
        "Grüße, 你好　世界, नमस्ते",
        "می\u200cخواهم",
        "👩\u200d🔬 ✌️",
        "a\u00a0b",
        "[bold] :tada:",
    ],
)
def test_readable_text_stays(text: str):
    assert inert(text) == text


def test_line_ends_of_windows_are_line_ends():
    assert inert("a\r\nb\x1b") == "a\nb\\x1b"


@each_row("text", [text for text, _ in HOSTILE.values() if "\udc1b" not in text])
def test_documents_keep_their_values(text: str):
    document = json.dumps({text: [text]}, ensure_ascii=False)
    assert json.loads(inert_json(document)) == {text: [text]}
    assert inert(inert_json(document)) == inert_json(document)
    toml = 'text = "a\u202eb\x9bc\U000e0041"\n'
    assert tomllib.loads(inert_toml(toml)) == tomllib.loads(toml)
    assert inert_toml(toml).isascii()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_text_can_be_printed_in_every_encoding(encoding: str):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    make_encodable(stream)
    stream.write("a · b → c ≥ 0.5 … 你 \udc80 é")
    stream.flush()
    shown_decoded = raw.getvalue().decode(encoding)
    expected = {
        "ascii": r"a - b -> c >= 0.5 ... \u4f60 \udc80 \xe9",
        "latin-1": r"a · b -> c >= 0.5 ... \u4f60 \udc80 é",
        "cp1252": r"a · b -> c >= 0.5 … \u4f60 \udc80 é",
        "utf-8": r"a · b → c ≥ 0.5 … 你 \udc80 é",
    }
    assert shown_decoded == expected[encoding]


def test_log_records_and_warnings_are_inert(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    monkeypatch.setattr(logging, "lastResort", handler)
    make_logs_inert()
    make_logs_inert()  # a second command in the same process
    handler.handle(logging.makeLogRecord({"msg": "the server said %s", "args": ("\x1b[2J",)}))
    assert out.getvalue() == "the server said \\x1b[2J\n"
    monkeypatch.setattr(warnings, "formatwarning", terminal_text._InertWarnings(warnings.formatwarning))
    assert "\\x1b]52" in warnings.formatwarning("\x1b]52;c;x\x07", UserWarning, "file.py", 1, "line")


def test_progress_bars_of_other_libraries_do_not_flood_a_log():
    """As in `rove model get`, whose conversion updates a bar for every tensor."""
    code = (
        "from rove.utils.terminal_text import hide_progress_bars; hide_progress_bars()\n"
        "from tqdm.auto import tqdm\n"
        "list(tqdm(range(50), mininterval=0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_an_uncaught_exception_is_printed_inert(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for name in ("excepthook",):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(terminal_text.threading, "excepthook", terminal_text.threading.excepthook)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    terminal_text.protect_terminal()
    try:
        raise ValueError("body: \x1b]0;owned\x07")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    err = capsys.readouterr().err
    assert "ValueError: body: \\x1b]0;owned\\x07" in err
    assert "\x1b" not in err
