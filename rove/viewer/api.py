"""What the pages ask, as functions of a shelf and the parameters of an address; each returns plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.runs.annotations import Annotations, Change, Said, Subject
from rove.runs.annotations import annotate as keep
from rove.runs.run import Run
from rove.viewer import queries
from rove.viewer.compare import compared
from rove.viewer.html import cut, utf8_text
from rove.viewer.index import Index, Progress
from rove.viewer.jsonl_tail import GrowingLines
from rove.viewer.queries import Chosen
from rove.viewer.rollouts import Spell, add_trained, parting, read_line, shortened, told
from rove.viewer.run_store import TROUBLE, RunStore, described, status, why_stopped

SIBLINGS = 16
"""Siblings shown side by side at most."""
BAD = 100
"""Unreadable lines that are told."""
PATIENCE = 5.0
"""Seconds of reading that a question waits for which one line, or all of them, must be known."""
RAW = 200_000
"""Characters shown of a line as it lies in the file."""
BAD_TEXT = 4000
"""Characters shown of one."""


class Asked:
    """The parameters of an address.

    Args:
        pairs: names and values, as they stand there.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self.pairs = pairs

    def text(self, name: str, default: str | None = None) -> str:
        """The last value of a parameter.

        Raises:
            ConfigError: it is not there, and has no default.
        """
        found = [value for key, value in self.pairs if key == name]
        if not found and default is None:
            raise ConfigError(f"the parameter '{name}' is missing")
        return found[-1] if found else default or ""

    def whole(self, name: str, default: int | None = None) -> int:
        """The same as a whole number.

        Raises:
            ConfigError: it is none, or out of bounds.
        """
        given = self.text(name, None if default is None else str(default))
        if not given.isascii() or not given.isdecimal() or len(given) > 15:
            raise ConfigError(f"{name} is '{given[:40]}'; expected a whole number, 0 or more")
        return int(given)


def runs(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """Every run, as a row of a table."""
    found = []
    for name in shelf.names():
        try:
            found.append(shelf.run_summary(name))
        except (ConfigError, OSError):  # gone by now
            continue
    return {"folder": utf8_text(shelf.base.name), "annotate": shelf.annotate, "runs": found}


def run(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """One run: its settings, versions, summary, and what can be asked of its rollouts."""
    name = asked.text("run")
    folder = shelf.run(name)
    index, progress = shelf.index(name)
    known = queries.columns(index) if progress.size else {}
    return {
        "name": name,
        **_state(folder),
        **_settled(lambda: described(folder), {"kind": "unreadable", "env": "", "model": "", "config": {}}),
        "versions": _settled(lambda: {"list": folder.versions()}, {"list": []})["list"],
        "summary": _settled(folder.summary, None),
        "progress": _progress(progress),
        "annotate": shelf.annotate,
        "tags": index.annotations.run.tags,
        "known_tags": index.annotations.tags(),
        "annotated": bool(index.annotations.rollouts),
        "bad_annotations": len(index.annotations.bad),
        "values": [name for name in known if name not in queries.WORDS[:4]],
        "sorts": list(known),
        "scores": list(index.columns()) if progress.size else [],
        "steps": shelf.metrics(name).rows[-1:] != [],
    }


def _state(folder: Run) -> dict[str, str]:
    """Whether a run goes on, and what ended it if not."""
    now = status(folder)
    return {"status": now, **_settled(lambda: {"why": why_stopped(folder, now)}, {"why": ""})}


def _settled(read: Callable[[], Any], otherwise: Any) -> Any:
    """What a file says; of one that cannot be read, why."""
    try:
        return read()
    except (RunError, OSError) as error:
        return otherwise if otherwise is None else {**otherwise, "trouble": utf8_text(str(error))[:TROUBLE]}


def _progress(progress: Progress) -> dict[str, Any]:
    return {key: value for key, value in progress._asdict().items() if key != "stamp"}


def _chosen(shelf: RunStore, asked: Asked) -> tuple[Index, Progress, Chosen]:
    index, progress = shelf.index(asked.text("run"))
    if not progress.size:
        return index, progress, Chosen("1", [])
    return index, progress, queries.choose(queries.columns(index), asked.pairs)


def rollouts(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """A page of rows."""
    index, progress, chosen = _chosen(shelf, asked)
    offset, limit = asked.whole("offset", 0), asked.whole("limit", 50)
    sort, order = asked.text("sort", "line"), asked.text("order", "up")
    if order not in ("up", "down"):
        raise ConfigError(f"order is '{order[:40]}'; expected up or down")
    empty = {"total": 0, "rows": []}
    found = queries.page(index, chosen, sort, order == "down", offset, limit) if progress.size else empty
    return {**found, "progress": _progress(progress)}


def facet(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """How many rollouts have which value."""
    index, progress, chosen = _chosen(shelf, asked)
    name = asked.text("name")
    return queries.facet(index, chosen, name) if progress.size else {"name": name, "values": [], "others": 0}


def histogram(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """How often a number has which value."""
    index, progress, chosen = _chosen(shelf, asked)
    name = asked.text("name")
    return queries.histogram(index, chosen, name) if progress.size else {"name": name, "count": 0, "bars": []}


def bad_lines(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """The lines that are no rollouts, with why, and how they begin."""
    index, progress = shelf.index(asked.text("run"))
    sql = "SELECT line, offset, size, why FROM bad ORDER BY line LIMIT ?"
    found = []
    for line, offset, size, why in index.ask(sql, [BAD]) if progress.size else []:
        text = read_line(index.file, offset, size).decode("utf-8", "replace")
        found.append({"line": line, "why": why, "text": shortened(text, BAD_TEXT)})
    return {"bad": progress.bad, "lines": found}


def _line(index: Index, progress: Progress, number: int) -> bytes:
    found = index.ask("SELECT offset, size FROM rollouts WHERE line = ?", [number]) if progress.size else []
    if not found:
        raise ConfigError(f"no rollout in line {number}")
    return read_line(index.file, *found[0])


def rollout(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """One rollout, with its advantage over its siblings and where they are; of its tokens, what the trainer knew of them where
    that was kept, and else of which rollouts of its step (`kept`) it was."""
    name, number = asked.text("run"), asked.whole("line")
    index, progress = shelf.index(name, PATIENCE)
    line = _line(index, progress, number)
    found = told(line, speller(shelf, name), whole=asked.text("whole", "") == "1")
    siblings = _siblings(index, found["example_key"], found["step"])
    rewards = [row["reward"] for row in siblings if row["reward"] is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    advantage = None if found["reward"] is None or mean is None else found["reward"] - mean
    said = index.annotations.rollouts.get((found["step"], found["example_key"], found["rollout_index"]), Said())
    trained = {(one.example_key, one.rollout_index): one for one in shelf.tokens(name, found["step"])}
    mine = trained.get((found["example_key"], found["rollout_index"]))
    if mine is not None:
        add_trained(found["tokens"], mine)
    kept = queries.rows(index, _lines_of(index, found["step"], [] if mine else list(trained)))
    known = {"line": number, "size": len(line), "advantage": advantage, "siblings": siblings, "kept": kept}
    return {**found, **known, "tags": said.tags, "note": said.note}


def _lines_of(index: Index, step: int | None, places: Sequence[tuple[str, int]]) -> list[int]:
    """The lines of these rollouts of a step, by example key and sibling."""
    sql = (
        "SELECT line FROM rollouts INDEXED BY places WHERE example_key = ? AND rollout = ? AND step IS ? "
        "AND superseded = 0"
    )
    return [line for place in places[:SIBLINGS] for (line,) in index.ask(sql, [*place, step])]


def _siblings(index: Index, key: str, step: int | None) -> list[dict[str, Any]]:
    sql = (
        "SELECT line FROM rollouts INDEXED BY places WHERE example_key = ? AND step IS ? AND superseded = 0 "
        "ORDER BY rollout, line LIMIT 256"
    )
    return queries.rows(index, [line for (line,) in index.ask(sql, [key, step])])


def group(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """The rollouts of an example side by side, each with the place where it parts from the first one."""
    index, progress = shelf.index(asked.text("run"), PATIENCE)
    first = decoded_place(_line(index, progress, asked.whole("line")))
    siblings = _siblings(index, *first)
    shown, completions = [], []
    for row in siblings[:SIBLINGS]:
        line = _line(index, progress, row["line"])
        record = told(line)
        completions.append(msgspec.json.decode(line)["record"]["completion"])
        parts = parting(completions[0], completions[-1])
        shown.append(
            {
                **row,
                "prompt": record["prompt"],
                "completion": record["completion"],
                "renderings": record["renderings"],
                "parts": parts,
            }
        )
    return {"rollouts": shown, "left_out": len(siblings) - len(shown)}


def decoded_place(line: bytes) -> tuple[str, int | None]:
    """Example key and step of a line."""
    record = msgspec.json.decode(line)["record"]
    return record["example_key"], record.get("step")


def raw(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """A line as it lies in the file, indented, its middle left out where it is too long for a page."""
    index, progress = shelf.index(asked.text("run"), PATIENCE)
    line = _line(index, progress, asked.whole("line"))
    return {"text": cut(msgspec.json.format(line, indent=2).decode("utf-8", "replace"), RAW)}


def metrics(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """The rows of metrics after the first `after`, in the `life` of a file they were counted in; alerts, spread of the reward."""
    name = asked.text("run")
    folder, lines = shelf.run(name), shelf.metrics(name)
    after = asked.whole("after", 0) if asked.whole("life", lines.life) == lines.life else 0
    index, progress = shelf.index(name)
    alerts = GrowingLines(folder.path / "alerts.jsonl")
    alerts.catch_up()
    return {
        "life": lines.life,
        "after": min(after, len(lines.rows)),
        "rows": lines.rows[after:],
        "bad": lines.bad + alerts.bad,
        "alerts": alerts.rows,
        "steps": index.remember("steps", lambda: queries.steps(index)) if progress.size else [],
        **_state(folder),
        **_settled(lambda: {"kind": described(folder)["kind"]}, {"kind": "unreadable"}),
        "progress": _progress(progress),
    }


def groups(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """How the groups of some training steps fared."""
    index, progress = shelf.index(asked.text("run"))
    if not progress.size:
        return {"groups": 0, "dead": 0, "bars": []}
    return queries.groups(index, asked.whole("first", 0), asked.whole("last", queries.DEEPEST >> 8))


def compare(shelf: RunStore, asked: Asked) -> dict[str, Any]:
    """Two runs, example by example."""
    names = asked.text("a"), asked.text("b")
    indexes, readings = zip(*(shelf.index(name, PATIENCE) for name in names))
    if not all(progress.size for progress in readings):
        missing = names[0] if not readings[0].size else names[1]
        raise ConfigError(f"'{missing}' has no rollouts: there is nothing to compare")
    found = compared(indexes[0], indexes[1], asked.text("value", "reward"), names)
    return {**found, "reading": not all(progress.done for progress in readings)}


def speller(shelf: RunStore, name: str) -> Spell | None:
    """The text of a token, where the run or the model it was made with has a tokenizer in the same folder of runs."""
    folder = shelf.run(name)
    candidates = [folder.path / "final", *sorted((folder.path / "checkpoints").glob("*"))]
    model = _settled(lambda: described(folder), {"model": ""})["model"]
    if model:
        candidates.append(Path(model))
    for candidate in candidates:
        try:
            file = (candidate / "tokenizer.json").resolve()
            is_ours = file.is_relative_to(shelf.base) and file.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, links in a circle
            continue
        if is_ours:
            return _tokenizer(file, file.stat().st_mtime_ns)
    return None


@lru_cache(maxsize=8)
def _tokenizer(file: Path, changed: int) -> Spell | None:
    try:
        from tokenizers import Tokenizer  # of the extra `train`

        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # not installed; or a file that is no tokenizer, of which the library raises plain exceptions
        return None
    return lru_cache(maxsize=65536)(lambda id: tokenizer.decode([id], skip_special_tokens=False))


class ReadOnly(ConfigError):
    """Nothing is written here."""


class Wish(msgspec.Struct, frozen=True):
    """What somebody wants to say of a run, or of a rollout of it."""

    run: str
    line: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None
    """Of the rollout; None: the run as a whole."""
    add: list[str] = []
    remove: list[str] = []
    note: str | None = None


def annotate(shelf: RunStore, body: bytes) -> dict[str, Any]:
    """`say` what is in the body of a request.

    Raises:
        ReadOnly: nobody may annotate here.
        ConfigError: it is no `Wish` as JSON, or see `say`.
    """
    if not shelf.annotate:
        raise ReadOnly("nothing is written here; to tag runs and rollouts: rove view --annotate")
    try:
        wish = msgspec.json.decode(body, type=Wish)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not an annotation: {error}") from error
    return say(shelf, wish)


def say(shelf: RunStore, wish: Wish) -> dict[str, Any]:
    """Tag a run or a rollout, or write a note on one: what is said of it then.

    Raises:
        ConfigError: there is no such rollout, or it is no tag.
    """
    index, progress = shelf.index(wish.run)
    about = None
    if wish.line is not None:
        record = msgspec.json.decode(_line(index, progress, wish.line))["record"]
        about = Subject(record["example_key"], record["rollout_index"], record.get("step"))
    try:
        change = Change(wish.add, wish.remove, wish.note, about)
    except ValueError as error:
        raise ConfigError(f"not an annotation: {error}") from error
    keep(index.file.parent, change)
    said = Annotations(index.file.parent)
    now = said.rollouts.get(about.place, Said()) if about else said.run
    return {"tags": now.tags, "note": now.note, "known_tags": said.tags()}


ENDPOINTS: Mapping[str, Callable[[RunStore, Asked], dict[str, Any]]] = {
    "runs": runs,
    "run": run,
    "rollouts": rollouts,
    "facet": facet,
    "histogram": histogram,
    "bad": bad_lines,
    "rollout": rollout,
    "group": group,
    "raw": raw,
    "metrics": metrics,
    "groups": groups,
    "compare": compare,
}
"""What can be asked, by its name below /api/."""
