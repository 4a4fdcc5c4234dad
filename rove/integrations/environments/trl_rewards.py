"""Rows with reward functions that are written for TRL, as an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rove.core.config import import_function
from rove.core.errors import ConfigError
from rove.core.plain import Row, is_mapping
from rove.envs.multi_turn import SingleTurnEnv
from rove.envs.question_files import FileRow
from rove.envs.question_split import Split
from rove.integrations.environments.row_files import HELD_OUT, read_row_files
from rove.integrations.trl import TRL_COLUMNS, rubric_from_trl


class TRLRewardsEnv(SingleTurnEnv):
    """Rows for TRL's `GRPOTrainer`: the model answers each prompt once, and reward functions written for TRL score it.

    As in TRL, a prompt is a list of messages or a text. A text is continued without a chat template, and the functions get
    completions as texts. All columns are passed to the functions with the values in the file.

    Example:
        env = rove.load_environment("trl:my_rewards:accuracy", data="rows.jsonl")

    Args:
        reward_funcs: Reward functions as package.module:function, separated by commas.
        data: File of rows with the column `prompt`: .jsonl, .csv or .parquet.
        eval_data: File of rows for evaluation. Default: a part of `data`.
        weights: Weight of each function. Default: 1.
        held_out: Fraction of the different prompts in `data` that are only for evaluation, if there is no `eval_data`.
        kwargs: See `Environment`.

    Raises:
        ConfigError: A function cannot be imported, or a row has no prompt or one of another type than the first row.
    """

    def __init__(
        self,
        reward_funcs: str,
        data: str,
        eval_data: str | None = None,
        weights: Sequence[float] | None = None,
        held_out: float = HELD_OUT,
        **kwargs: Any,
    ):
        functions = [import_function("reward function", name.strip()) for name in reward_funcs.split(",")]
        files = read_row_files(data, eval_data, held_out, _row)
        is_text = isinstance(files.training[0]["prompt"], str)
        for row in [*files.training, *(files.evaluation or [])]:
            if isinstance(row["prompt"], str) != is_text:
                raise ConfigError(
                    f"{data} has prompts that are texts and prompts that are lists of messages; expected only one of them"
                )
        self.split: Split = files.split
        super().__init__(
            dataset=files.training,
            eval_dataset=files.evaluation,
            rubric=rubric_from_trl(functions, weights),
            **{"message_type": "completion" if is_text else "chat", **kwargs},
        )

    @property
    def split_description(self) -> str:
        """Description of how the rows are split into training rows and held-out rows."""
        return self.split.description


def _row(path: str, row: FileRow) -> Row:
    prompt = row.values.get("prompt")
    if not prompt or not isinstance(prompt, (str, list)):
        raise ConfigError(
            f"{path}, {row.position}: the column 'prompt' is {prompt!r}; expected a text or a list of messages, as in TRL"
        )
    converted: Row = {**row.values, TRL_COLUMNS: row.values}
    # In TRL, `info` is any other column; in rove it is a dict.
    if not is_mapping(converted.get("info")):
        converted.pop("info", None)
    return converted
