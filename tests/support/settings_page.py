"""Write docs/settings.md from the settings' docstrings, and rove/viewer/defaults.json, whose values the viewer compares.

make settings-page          # or: python tests/support/settings_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rove.core.settings_docs import documented_fields, type_text
from rove.remote.isolation import IsolationConfig, RayConfig
from rove.rollouts.exhaustive import Goals
from rove.stages.evaluation import EvalConfig
from rove.train.alerts import AlertLimits
from rove.train.config import (
    CurriculumConfig,
    EvaluationConfig,
    FilterConfig,
    LoRAConfig,
    LossConfig,
    RLConfig,
    SFTConfig,
)
from rove.vllm.server import VLLMConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/settings.md"
DEFAULTS = ROOT / "rove/viewer/defaults.json"
KINDS: dict[str, type[msgspec.Struct]] = {
    "eval": EvalConfig,
    "rl": RLConfig,
    "sft": SFTConfig,
    "evaluation": EvaluationConfig,
}
TABLES: dict[str, type[msgspec.Struct]] = {
    "`rove rl`": RLConfig,
    "`rove sft`": SFTConfig,
    "`[[evaluation]]` (both commands)": EvaluationConfig,
    '`[evaluation.goals]` (for `kind = "exhaustive"`)': Goals,
    "`[loss]` (`rove rl`)": LossConfig,
    "`[curriculum]` (`rove rl`)": CurriculumConfig,
    "`[filter]` (`rove rl`)": FilterConfig,
    "`[lora]` (both commands)": LoRAConfig,
    "`[isolation]` (`rove rl` and `rove eval`)": IsolationConfig,
    "`[ray]` (`rove rl` and `rove eval`)": RayConfig,
    "`[alerts]` (both commands)": AlertLimits,
    "`[vllm]` (`rove rl`)": VLLMConfig,
}
BEGINNING = """# Settings of training

This page lists every setting of `rove rl` and `rove sft` with its default. You can set each of them in a settings file
(`@ rl.toml`, [an example](training.md#a-settings-file)) or with a flag. The flag is `--key value` or, for a setting in a table,
`--table.key value` (for example, `--lora.rank 8`). In the second column, – means "not set". The third column states the range of
each number. A value outside its range is reported as an error before any work begins, even if Python code creates the settings.
The values nan and infinity are errors for every setting. [training.md](training.md) explains most of the settings. A test checks
that this page matches the types and docstrings in the code.
"""


def default_of(field: Any) -> str:
    """Return a field's default in the form of a settings file."""
    if field.required:
        return "required"
    value = _value(field)
    if value is None:
        return "–"
    if isinstance(value, msgspec.Struct):
        return "see below"
    return f"`{msgspec.json.encode(value).decode()}`"


def rows(kind: type[msgspec.Struct]) -> list[str]:
    """Return a row of the table for each setting of a struct."""
    words = documented_fields(kind.__module__, kind.__name__)
    fields = msgspec.structs.fields(kind)
    assert list(words) == [field.name for field in fields]
    return [f"| `{f.name}` | {default_of(f)} | {value_of(f)} | {as_cell(words[f.name])} |" for f in fields]


def value_of(field: Any) -> str:
    """Return the type and range of a field; "" for a nested table, which has its own section."""
    is_table = isinstance(None if field.required else _value(field), msgspec.Struct)
    return "" if is_table else as_cell(type_text(field.type))


def as_cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return text.replace("|", chr(92) + "|")


def page() -> str:
    """Return the page."""
    head = "| setting | default | type and range | meaning |\n|---|---|---|---|\n"
    return BEGINNING + "".join(
        f"\n## {title}\n\n{head}" + "\n".join(rows(kind)) + "\n" for title, kind in TABLES.items()
    )


def defaults() -> bytes:
    """Return the defaults of all settings by kind of run as JSON."""
    defaults_by_kind = {
        kind: {
            field.name: msgspec.to_builtins(_value(field))
            for field in msgspec.structs.fields(settings)
            if not field.required
        }
        for kind, settings in KINDS.items()
    }
    return msgspec.json.format(msgspec.json.encode(defaults_by_kind), indent=1) + b"\n"


def _value(field: Any) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    DEFAULTS.write_bytes(defaults())
