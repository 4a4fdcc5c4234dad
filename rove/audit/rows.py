"""Facts about an environment's rows, and the answers that its parser reads, from a separate process.

`python -m rove.audit.rows` reads a request from stdin and writes JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from itertools import islice

from rove.audit.guard import prepare_imports, record_contact
from rove.core.digest import fingerprint
from rove.core.messages import AssistantMessage, text_of
from rove.core.plain import Arguments, JsonObject
from rove.envs.loading import environment_arguments, load_environment
from rove.integrations.known_defects import KnownDefectWarning
from rove.rubrics.parser import Parser

AS_LISTS = ": tuples become lists"
"""Suffix of a column in which JSON changes nothing else."""
MAX_ROWS = 2000
"""Maximum number of rows of each dataset that are compared."""


def facts(env: str, env_dir: str | None, env_args: Arguments) -> JsonObject:
    """Return facts about an environment.

    Returns:
        "train", "eval": rows, see `_row`; "has_both": whether evaluation has its own rows; "arguments": names of the
        arguments of `load_environment`; "known_defects": warnings about tasks of other libraries.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = load_environment(env, env_dir, **env_args)
    defects = [str(warning.message) for warning in caught if issubclass(warning.category, KnownDefectWarning)]
    has_training = loaded.count_examples(train=True) != 0
    collected: JsonObject = {"arguments": sorted(environment_arguments(env, env_dir)), "known_defects": defects}
    for name, train in (("eval", False), ("train", True)):
        rows: list[JsonObject] = []
        if has_training or not train:
            rows = list(islice(loaded.examples(MAX_ROWS, train), MAX_ROWS))
        collected[name] = [_row(row) for row in rows]
    has_two_datasets = loaded.dataset is not None and loaded.eval_dataset is not None
    # Environment groups and isolated environments have no dataset here, so their rows decide.
    collected["has_both"] = has_two_datasets or collected["train"] != collected["eval"]
    return collected


def parsed(env: str, env_dir: str | None, env_args: Arguments, replies: list[str]) -> list[str] | None:
    """Return the answers that the environment's parser reads from replies; None if the environment defines no parser."""
    loaded = load_environment(env, env_dir, **env_args)
    parser = getattr(loaded, "parser", None)
    if parser is None or type(parser) is Parser:  # the plain parser reads the whole reply
        return None
    return [_parsed(parser, reply) for reply in replies]


def _parsed(parser: Parser, reply: str) -> str:
    try:
        return str(parser.parse_answer([AssistantMessage(reply)]))
    except Exception as error:  # a parser of the environment may raise anything
        return f"{type(error).__name__}: {error}"


def _changed(key: str, value: object, read_value: object) -> str:
    """Describe a column that JSON changes; a tuple that becomes a list rarely matters."""
    return f"{key}{AS_LISTS}" if _with_lists(value) == read_value else key


def _with_lists(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_with_lists(part) for part in value]
    if isinstance(value, dict):
        return {key: _with_lists(part) for key, part in value.items()}
    return value


def _row(row: JsonObject) -> JsonObject:
    """Return a row's prompt and answer as texts, the digest of its content, and the names of columns that JSON changes."""
    prompt = row["prompt"]
    parts = [prompt] if isinstance(prompt, str) else [text_of(m) for m in prompt if m["role"] != "system"]
    content = {key: value for key, value in row.items() if key not in ("example_id", "task", "prompt")}
    try:
        round_trip = json.loads(json.dumps(content))
        changed = [_changed(key, value, round_trip[key]) for key, value in content.items() if round_trip[key] != value]
    except (TypeError, ValueError, RecursionError) as error:
        changed = [f"not JSON: {error}"]
        content = {key: repr(value) for key, value in content.items()}
    return {
        "text": "\n".join(parts),
        "digest": fingerprint({"prompt": parts, "content": json.loads(json.dumps(content, default=repr))}),
        "answer": str(row.get("answer") or ""),
        "changed": changed,
    }


if __name__ == "__main__":
    request = json.load(sys.stdin)
    # An environment may print while it is loaded, which must not end up in the JSON.
    out = os.dup(1)
    os.dup2(2, 1)  # what the environment prints goes to stderr
    prepare_imports()
    contacted: list[str] = []
    sys.addaudithook(lambda event, args: record_contact(contacted, event, args))
    if "replies" in request:
        result = json.dumps(parsed(**request))
    else:
        result = json.dumps({**facts(**request), "contacted": sorted(set(contacted))})
    with os.fdopen(out, "w", encoding="utf-8", newline="\n") as stdout:
        stdout.write(result)
