"""Answers to the usual questions about a `rove train` run: did it learn, is that certain, what is still wrong, what next?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rove.core.findings import registry
from rove.core.plain import JsonMapping, JsonObject
from rove.runs.train_folder import DIAGNOSES, ResultRow
from rove.statistics.format import percent
from rove.utils.units import counted
from rove.viewer.train_commands import continue_command, continue_commands, model_folder, repeat_command, seed_of
from rove.viewer.train_table import (
    SAME_REWARD,
    KeptModel,
    TrainResults,
    best_reward,
    decimals,
    equal_words,
    has_interval,
    one_decimal,
    reward_of,
)

LEARNED_SHARE = 0.2
"""A reward is clearly above that of the weakest scripted policy if it exceeds it by this share of the difference between the
weakest and the best one."""
SOLVED = 0.01
"""Maximum share of the reward that a run loses at which more RL is not proposed."""
LONGER = 1.1
"""Factor from which replies count as longer."""
RL_FOLDER = re.compile(r"rl\d*|full")
"""Names of the folders of RL stages; their rows have the names that the recipe gives."""
MAX_ALERTS = 3
"""Maximum number of kinds of alerts that are described; the table of stages shows more."""

Part = str | JsonObject
"""A text, or an object: `command` (to copy), or `text` that links to `run` (a stage or evaluation) and its `line` or `step`.

A report, which has no pages to link to, omits links to a line.
"""


class TrainAnswers(NamedTuple):
    """The facts from which the answers are made."""

    results: TrainResults
    trained_model: KeptModel
    stages: Sequence[JsonMapping]
    """Descriptions of the stages (`rove.viewer.stages`)."""
    diagnoses: Sequence[str]
    mistakes: JsonMapping | None
    cost: str
    stopped: str = ""
    """Where and why the run was stopped; "" if it was not, or if this is unknown."""

    def answers(self) -> list[JsonObject]:
        """Return `title` and `parts` of each answer."""
        sentences: dict[str, Callable[[], Sequence[Part]]] = {
            "Learned": self._learned,
            "Certain": self._certain,
            "RL alone": self._rl_alone,
            "Still wrong": self._still_wrong,
            "Length": self._length,
            "Problems": self._problems,
            "Kept weights": self._kept_weights,
            "Cost": self._cost,
            "Repeat" if self.results.folder.is_complete else "Continue": self._repeat,
            "Next": self._next,
        }
        answers = [{"title": title, "parts": list(parts())} for title, parts in sentences.items()]
        return [answer for answer in answers if answer["parts"]]

    @property
    def _condition(self) -> str:
        """The condition under which the kept model is compared."""
        return self.trained_model.condition

    def _mean_reward(self, row: ResultRow) -> float:
        return reward_of(row, self._condition)["mean"]

    def _difference_from(self, row: ResultRow) -> JsonObject | None:
        """Return the difference between the rewards of a row and of the kept model; None if they cannot be compared."""
        return self.results.difference(row, self.trained_model.row, self._condition)

    @property
    def _base(self) -> ResultRow | None:
        return next((row for row in self.results.rows if row.name == "base"), None)

    @property
    def _trained(self) -> list[ResultRow]:
        """The first row of each trained model; a row with another temperature repeats a model."""
        trained = [row for row in self.results.rows if row.is_trained and row.conditions]
        first_rows: dict[str, ResultRow] = {}
        for row in trained:
            # Inserted again, so that the model of the last row, which is the kept model, comes last.
            first_rows[row.model] = first_rows.pop(row.model, row)
        return list(first_rows.values())

    def _learned(self) -> list[Part]:
        base, row = self._base, self.trained_model.row
        reward = f"The reward {phase(row)} is {decimals(self.trained_model.reward['mean'])}"
        if base is None:
            return [f"{reward}; the model before training was not evaluated."]
        main_difference = self._difference_from(base)
        if main_difference is None:
            return [f"{reward}; it cannot be compared with base."]
        # The condition of the kept reward comes first, and decides.
        direction = main_difference["direction"]
        changes = [f"{_from_to(main_difference)}{_in_brackets(self._condition)}"]
        for condition in row.conditions:
            main = None if condition == self._condition else self.results.difference(base, row, condition)
            if main is None:
                continue
            change = f"{_from_to(main)}{_in_brackets(condition)}"
            if main["direction"] != direction:
                change += {1: ", a rise", -1: ", a fall"}.get(main["direction"], ", no certain change")
            changes.append(change)
        verdict = {1: "Yes: the reward rose", -1: "No: the reward fell"}.get(
            direction, "Not measurably: the reward went"
        )
        if direction > 0 and self._is_near_weakest():
            verdict = "Partly: the reward is not clearly above that of the weakest scripted policy; it rose"
        best = best_reward(self.results, self._condition)
        most = "" if best is None else f"; the best reward of any rollout is {decimals(best)}"
        scripts = self.results.scripts(self._condition)
        means = [f"{script.name} {decimals(self._mean_reward(script))}" for script in scripts]
        comparison = f" For comparison, scripted policies: {', '.join(means)}." if means else ""
        span = f"from {phase(base)} (base) to {phase(row)}: {', '.join(changes)}"
        return [f"{verdict} {span}{most}.{comparison}"]

    def _is_near_weakest(self) -> bool:
        """Return whether the reward is hardly above that of the weakest scripted policy, which usually guesses."""
        scripts = self.results.scripts(self._condition)
        if len(scripts) < 2:
            return False
        weakest, best = self._mean_reward(scripts[0]), self._mean_reward(scripts[-1])
        return self.trained_model.reward["mean"] < weakest + LEARNED_SHARE * (best - weakest)

    def _certain(self) -> list[Part]:
        base = self._base
        main = None if base is None else self._difference_from(base)
        seed = f"This is one run, seed {seed_of(self.results.folder)}: another seed may end with another reward."
        if main is None:
            return [seed]
        if not has_interval(main):
            return [f"Difference {_signed(main['difference'])}, {equal_words(main)}. {seed}"]
        side = {1: "is above 0", -1: "is below 0"}.get(main["direction"], "includes 0")
        examples = f", paired over {counted(main['examples'], 'example')}" if main["examples"] else ""
        policies = [words for script in self._weakest_and_best() if (words := self._compared_with(script))]
        comparison = f" Compared with {'; with '.join(policies)}." if policies else ""
        return [
            f"The 95% interval of the difference from base, {change_words(main)}{examples}, {side}.{comparison} {seed}"
        ]

    def _weakest_and_best(self) -> list[ResultRow]:
        scripts = self.results.scripts(self._condition)
        return scripts if len(scripts) < 2 else [scripts[0], scripts[-1]]

    def _compared_with(self, script: ResultRow) -> str:
        main = self._difference_from(script)
        return "" if main is None else f"{script.name}: {change_words(main)}"

    def _rl_alone(self) -> list[Part]:
        """Return the change by each RL stage under each condition."""
        stages = [*([self._base] if self._base else []), *self._trained]
        sentences: list[str] = []
        for earlier_row, row in pairwise(stages):
            if not RL_FOLDER.fullmatch(_stage_folder(row)):
                continue
            changes: list[str] = []
            for condition in row.conditions:
                main = self.results.difference(earlier_row, row, condition)
                if main is not None:
                    changes.append(f"{change_words(main)}{_in_brackets(condition)}")
            if changes:
                sentences.append(f"From {phase(earlier_row)} to {phase(row)}: {'; '.join(changes)}.")
        if not sentences:
            return ["No RL stage was evaluated."]
        stage = self._kept_stage()
        if stage is not None and stage["is_rl"] and stage["kept_initial"]:
            sentences.insert(0, "RL did not help: the kept weights are those from before its first step.")
        return [f"{' '.join(sentences)} In brackets: 95% interval."]

    def _still_wrong(self) -> list[Part]:
        mistakes = self.mistakes
        if mistakes is None or not mistakes["summary"]:
            return []
        scripts = self.results.scripts(self._condition)
        losses = None
        if scripts and self._mean_reward(scripts[-1]) > self.trained_model.reward["mean"]:
            losses = self.results.losses(self.trained_model.row, scripts[-1], self._condition)
        if losses is not None:
            # The best reward of any rollout may be that of an easy example.
            size = (
                f"in {losses.lower:,} of {counted(losses.examples, 'example')} it earns less than {scripts[-1].name}, in "
                f"{losses.higher:,} more; the largest loss: {decimals(losses.reward)} where that earns "
                f"{decimals(losses.policy_reward)}. "
            )
            link = {"text": "Open it. ", "run": mistakes["folder"], "line": losses.line}
            return [f"{mistakes['source']}: {size}", link, " ".join(mistakes["field_sentences"][:2])]
        causes = mistakes["field_sentences"][:2] or mistakes["summary"][1:2]
        parts: list[Part] = [" ".join([f"{mistakes['source']}:", *mistakes["summary"][:1], *causes, ""])]
        if mistakes["worst"] is not None:
            parts.append(f"The worst: {mistakes['worst']['words']} ")
            parts.append({"text": "Open it", "run": mistakes["folder"], "line": mistakes["worst"]["line"]})
        return parts

    def _length(self) -> list[Part]:
        """Compare the lengths of the last two models' replies; sampling shows more than greedy decoding."""
        models = list(self._trained)
        # A model before training does not know when to end a reply, so only a single trained model is compared with it.
        if self._base is not None and len(models) == 1:
            models.insert(0, self._base)
        rows = [row for row in models if self._condition in row.conditions][-2:]
        lengths = [self.results.lengths(row, self._condition) for row in rows]
        per_reply = [length.tokens_per_reply for length in lengths]
        if not rows or per_reply[-1] is None:
            return []
        change = "Length of replies"
        if len(rows) > 1 and per_reply[-2]:
            ratio = per_reply[-1] / per_reply[-2]
            change = "Replies kept their length"
            if ratio > LONGER:
                change = "Replies got longer"
            elif ratio < 1 / LONGER:
                change = "Replies got shorter"
        described: list[str] = []
        for row, length, tokens in zip(rows, lengths, per_reply, strict=True):
            words = f"{one_decimal(tokens)} tokens per reply"
            if any(row_lengths.turns != 1 for row_lengths in lengths):
                words += f", {one_decimal(length.tokens)} in {one_decimal(length.turns)} turns per rollout"
            share = "" if length.truncated is None else f", {percent(length.truncated)}% truncated"
            described.append(f"{phase(row)} {words}{share}")
        return [f"{change}{_in_brackets(self._condition)}: {'; '.join(described)}."]

    def _problems(self) -> list[Part]:
        sentences = [f"{note[0].upper()}{note[1:]}." for note in self.results.folder.start_notes()]
        sentences += [
            f"Diagnosis of {text}" if text.endswith((".", "!", "?")) else f"Diagnosis of {text}."
            for text in self.diagnoses
        ]
        # Without the file, nothing was diagnosed: a demo, a run with tiny sizes, or one that has just begun.
        if not self.diagnoses and (self.results.folder.path / DIAGNOSES).exists():
            sentences.append("No diagnosis: no stage had a problem that rove knows.")
        links_by_id: dict[str, list[Part]] = {}
        for stage in self.stages:
            for alert in stage["alerts"]:
                link = {"text": f"{stage['title']}, step {alert['step']}", "run": stage["name"], "step": alert["step"]}
                links_by_id.setdefault(str(alert["id"]), []).append(link)
        if not links_by_id:
            sentences.append("No alert.")
        parts: list[Part] = [" ".join(sentences)]
        for alert_id, links in list(links_by_id.items())[:MAX_ALERTS]:
            info = registry().get(alert_id)
            meaning = f" ({info.title})" if info is not None else ""
            count = f"{counted(len(links), 'time')}, first at " if len(links) > 1 else ""
            parts += [f" Alert {alert_id}{meaning}: {count}", links[0], "."]
        if len(links_by_id) > MAX_ALERTS:
            parts.append(
                f" And {counted(len(links_by_id) - MAX_ALERTS, 'other kind')} of alerts: see the table of stages."
            )
        return parts

    def _kept_stage(self) -> JsonMapping | None:
        """Return the stage that made the kept model."""
        folder = _stage_folder(self.trained_model.row)
        return next((stage for stage in self.stages if stage["name"] == folder), None)

    def _kept_weights(self) -> list[Part]:
        stage = self._kept_stage()
        # The last stage with weights; those of a stopped run may not have been evaluated for the table.
        last_stage = next((stage for stage in reversed(self.stages) if stage["weights"]), None)
        if last_stage is not None and stage is not None and last_stage["name"] != stage["name"]:
            newest = (
                f"{last_stage['title']}, {last_stage['kept']}; the table has no row for these weights yet. Folder: "
            )
            return [newest, {"command": last_stage["weights"]}, " In the table: ", *self._weights_of_table(stage)]
        return self._weights_of_table(stage)

    def _weights_of_table(self, stage: JsonMapping | None) -> list[Part]:
        """Return which weights the last row of the table has, and why."""
        path = model_folder(self.results.folder, self.trained_model.row)
        if stage is None:
            return ["Folder: ", {"command": path}]
        return [f"{stage['title']}, {stage['kept_step']}: {stage['why_kept']}. Folder: ", {"command": path}]

    def _cost(self) -> list[Part]:
        steps = ", ".join(f"{stage['title']}: {stage['size']}" for stage in self.stages)
        if not self.cost:
            if self.results.folder.is_complete:
                return [f"{steps}."]
            return [f"{steps}; the command {'was stopped' if self.stopped else 'has not ended'}."]
        took = self.cost.removeprefix("took ")
        return [f"{took}. {steps}. (A command that was stopped and repeated counts only from its last start.)"]

    def _repeat(self) -> list[Part]:
        folder = self.results.folder
        command = repeat_command(folder) if folder.is_complete else continue_command(folder)
        return [{"command": command}] if command else []

    def _next(self) -> list[Part]:
        """Propose what to do next, with the reason of each proposal."""
        if not self.results.folder.is_complete:
            return how_to_continue(continue_command(self.results.folder), self.stopped)
        commands = continue_commands(self.results.folder, self.trained_model.row)
        parts: list[Part] = []
        if self.diagnoses:
            parts.append("First follow the advice of the diagnosis. ")
        parts += self._about_more_training(commands.get("rl", ""))
        seed = seed_of(self.results.folder) + 1
        other_seed = repeat_command(self.results.folder, seed, f"runs/seed-{seed}")
        if other_seed:
            parts += [" Another seed, to see whether the result depends on it: ", {"command": other_seed}]
        if "play" in commands:
            parts += [" To see how it replies: ", {"command": commands["play"]}]
        return parts

    def _about_more_training(self, rl: str) -> list[Part]:
        """Propose more RL only if it can help: not at the best possible reward, nor after RL that no longer progressed."""
        share = None if self.mistakes is None else self.mistakes["share"]
        if share is not None and share <= SOLVED:
            return [
                f"It loses {percent(share)}% of the best reward, so more RL can gain little: train on a harder setting."
            ]
        stage = self._kept_stage()
        if stage is None or not stage["is_rl"]:
            return ["No RL yet, which may raise the reward: ", {"command": rl}] if rl else []
        if stage["stopped_early"] and "max_minutes" in stage["ended"]:  # the setting that limits the time
            return [
                f"A time limit ended RL ({stage['ended']}). If the held-out reward still rose, repeat the run with more "
                "--minutes, or with a larger rl.max_minutes in a copy of the recipe."
            ]
        if stage["stopped_early"]:
            return [f"RL ended early ({stage['ended']}): look at what it still gets wrong before more training."]
        best = best_reward(self.results, self._condition)
        best_held_out = stage["best_reward"]
        if best is not None and best_held_out is not None and abs(best - best_held_out) <= SAME_REWARD:
            return [
                f"Every held-out example that chooses the weights already earned {decimals(best)} at {stage['kept_step']}, so "
                "more steps cannot be seen to help. Use more of these examples (num_examples of [[rl.evaluation]] in a copy of "
                "the recipe), or train on a harder setting."
            ]
        when = "" if best_held_out is None else f"; its best held-out reward came at {stage['kept_step']}"
        return [f"RL ended at its planned number of steps{when}. More steps: ", {"command": rl}] if rl else []


def how_to_continue(command: str, stopped: str) -> list[Part]:
    """Return how to continue a run that is not complete.

    Args:
        command: The command that continues it; "" if there is none.
        stopped: Where and why it was stopped; "" if this is unknown.
    """
    if not stopped:
        return ["The run is not complete. Unless it is still running, the command above continues it."]
    return [f"Stopped {stopped}. Continue with: ", {"command": command}] if command else [f"Stopped {stopped}."]


def _stage_folder(row: ResultRow) -> str:
    """Return the name of the folder of the stage that made a row's model; "" for another model."""
    parts = row.model.replace("\\", "/").split("/")
    return parts[-2] if len(parts) > 1 else ""


def _from_to(main: JsonMapping) -> str:
    return f"{decimals(main['a'])} to {decimals(main['b'])}"


def phase(row: ResultRow) -> str:
    """Return when a row's model was evaluated: "before training" or "after RL"."""
    return "before training" if row.name == "base" else f"after {row.name.removeprefix('+ ')}"


def change_words(main: JsonMapping) -> str:
    """Return a difference with its interval, or what is known without one."""
    difference = _signed(main["difference"])
    if has_interval(main):
        return f"{difference} [{decimals(main['low'])}, {decimals(main['high'])}]"
    return f"{difference} [{equal_words(main)}]"


def _signed(value: float) -> str:
    return f"+{decimals(value)}" if value > 0 else decimals(value)


def _in_brackets(condition: str) -> str:
    return f" ({condition})" if condition else ""
