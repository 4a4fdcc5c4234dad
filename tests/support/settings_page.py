"""docs/settings.md, made of the settings' own words: `python tests/support/settings_page.py` writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rove.cli.settings_help import documented_fields
from rove.games.exhaustive import Goals
from rove.remote.loading import IsolationConfig, RayConfig
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

PAGE = Path(__file__).resolve().parents[2] / "docs/settings.md"
TABLES: dict[str, type[msgspec.Struct]] = {
    "`rove rl`": RLConfig,
    "`rove sft`": SFTConfig,
    "`[[evaluation]]`, of both": EvaluationConfig,
    '`[evaluation.goals]`, of `kind = "exhaustive"`': Goals,
    "`[loss]`, of `rove rl`": LossConfig,
    "`[curriculum]`, of `rove rl`": CurriculumConfig,
    "`[filter]`, of `rove rl`": FilterConfig,
    "`[lora]`, of both": LoRAConfig,
    "`[isolation]`, of `rove rl` and `rove eval`": IsolationConfig,
    "`[ray]`, of `rove rl` and `rove eval`": RayConfig,
    "`[alerts]`, of both": AlertLimits,
    "`[vllm]`, of `rove rl`": VLLMConfig,
}
BEGINNING = """# Settings of training

Here you can look up every setting of `rove rl` and `rove sft` with its default. A test keeps this page equal to the docstrings in
the code. Each setting is a key of a settings file (`@ rl.toml`, [an example](training.md#a-settings-file)) and a flag:
`--key value`, or `--table.key value` for a setting in a table (`--lora.rank 8`). – means "not set". [training.md](training.md)
explains most of them.
"""


def default_of(field: Any) -> str:
    """A field's default as it would stand in a settings file."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return "–"
    if isinstance(value, msgspec.Struct):
        return "see below"
    return f"`{msgspec.json.encode(value).decode()}`"


def rows(kind: type[msgspec.Struct]) -> list[str]:
    """A line for each setting of a struct."""
    words = documented_fields(kind.__module__, kind.__name__)
    fields = msgspec.structs.fields(kind)
    assert list(words) == [field.name for field in fields]
    return [f"| `{f.name}` | {default_of(f)} | {words[f.name].replace('|', chr(92) + '|')} |" for f in fields]


def page() -> str:
    """The whole page."""
    head = "| setting | default | meaning |\n|---|---|---|\n"
    return BEGINNING + "".join(
        f"\n## {title}\n\n{head}" + "\n".join(rows(kind)) + "\n" for title, kind in TABLES.items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
