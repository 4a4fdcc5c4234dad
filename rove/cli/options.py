"""Options and settings that several commands share, examples in help texts, and confirmation questions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from rove.core.config import RUN_CONFIG, load, parse_value, read_toml
from rove.core.errors import ConfigError, as_json
from rove.core.plain import JsonMapping, JsonObject
from rove.core.ranges import PositiveInt, Range, range_of
from rove.core.settings_docs import settings_of
from rove.runs.provenance import foreign_settings, seal
from rove.utils.terminal_text import inert

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

YES_FLAG = "--yes"
"""Flag of every command: answer all questions with yes."""
SETTINGS: dict[str, object] = {"ignore_unknown_options": True, "allow_extra_args": True}
"""click settings of commands that take `@ file.toml` and `--key value`."""


class _RangeOption(click.ParamType):
    """A number option that refuses nan and infinity; a wrong value gives the same message as for settings."""

    def __init__(self, allowed: Range, **bounds: Any):
        super().__init__(**bounds)
        self.allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail."""
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value}; expected {self.allowed.expected()}", param, ctx)
        if not math.isfinite(number):  # nan is neither below nor above a bound, so that click accepts it
            self.fail(f"{value}; expected {self.allowed.expected(number)}", param, ctx)
        return number


class _IntRange(_RangeOption, click.IntRange):
    """An integer option."""


class _FloatRange(_RangeOption, click.FloatRange):
    """A number option."""

    def _describe_range(self) -> str:
        """Return the range for `--help`."""
        has_bounds = self.min is not None or self.max is not None
        return super()._describe_range() if has_bounds else "a finite number"


def in_range(annotation: Any) -> click.ParamType:
    """Return the type of an option for a number type of `rove.core.ranges`; `--help` shows its range."""
    allowed = range_of(annotation)
    assert allowed is not None, f"{annotation} is not a number type"
    kind = _IntRange if allowed.number is int else _FloatRange
    return kind(allowed, min=allowed.low, max=allowed.high, min_open=allowed.ge is None, max_open=allowed.le is None)


def setting_range(settings: type[msgspec.Struct], name: str) -> click.ParamType:
    """Return the type of the option for a setting."""
    return in_range(next(field.type for field in msgspec.structs.fields(settings) if field.name == name))


base_url_option = click.option(
    "-b", "--base-url", help="URL of an OpenAI-compatible endpoint, such as http://localhost:8000/v1."
)
api_key_var_option = click.option(
    "-k", "--api-key-var", help="Environment variable that holds the API key.  [default: OPENAI_API_KEY]"
)
endpoints_option = click.option(
    "-e", "--endpoints", help="File of named endpoints.  [default: endpoints.toml, configs/endpoints.toml]"
)
env_args_option = click.option("-a", "--env-args", help="Environment arguments as a JSON object.")
env_dir_option = click.option("--env-dir", help="Folder that is searched first for the environment.")
scorer_option = click.option(
    "--scorer",
    help="Scorer for a file of questions: exact, numeric, regex, choice, math or judge, or your own reward function as "
    "package.module:function.  [default: exact]",
)
judge_model_option = click.option(
    "--judge-model", help="Model for --scorer judge: a name in endpoints.toml, or a model at OPENAI_BASE_URL."
)
max_tokens_option = click.option("-t", "--max-tokens", type=in_range(PositiveInt), help="Maximum tokens per response.")
trust_option = click.option(
    "--trust-remote-code",
    is_flag=True,
    default=None,
    help="Run Python files that the model folder contains.  [default: refuse such a model]",
)
device_option = click.option(
    "--device",
    help="Device of a model folder: auto (CUDA if available, else cpu), cpu, cuda, cuda:N or mps.  [default: auto]",
)


def template_options(command: F) -> F:
    """Add the options of the chat template to a command."""
    args_option = click.option(
        "--template-args",
        callback=lambda _, __, text: json_object(text, "--template-args"),
        help="""Variables of the chat template as a JSON object, such as '{"enable_thinking": false}'.""",
    )
    template_option = click.option(
        "--chat-template",
        help="Chat template: chatml, or a Jinja file.  [default: the model folder's template]",
    )
    return template_option(args_option(command))


isolated_option = click.option(
    "--isolated",
    is_flag=True,
    default=None,
    help="Run ENV in a separate process, so that its crash or hang does not stop rove.",
)
isolated_python_option = click.option(
    "--isolated-python", help="Python interpreter for --isolated.  [default: create a virtual environment]"
)
ray_option = click.option(
    "--ray",
    metavar="ADDRESS",
    is_flag=False,
    flag_value="local",
    help="Run rollouts in actors of a Ray cluster: HOST:PORT, auto (the running one), or local (a new one, the default).",
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, default=None, help="Discard an earlier run in the run folder."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


FLAG_SETTINGS = {
    "isolated": "isolation.enabled",
    "isolated_python": "isolation.python",
    "loss": "loss.kind",
    "ray": "ray.address",
}
"""The settings of flags whose names are shorter than the setting's dotted name."""
RECIPE_TABLES = {"rl", "evaluation", "columns"}
"""Tables that every recipe has, and no settings file of a single command."""


def examples(*lines: str, note: str = "") -> str:
    """Return the end of a command's help: a note, then the section Examples."""
    return (f"{note}\n\n" if note else "") + "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def settings(kind: type[T], ctx: click.Context, bare: str = "", **named: Any) -> T:
    """Return a command's settings, from its named flags and the remaining words."""
    names: set[str] = set().union(*(param.opts for param in ctx.command.params))
    flags = {name.lstrip("-").replace("-", "_") for name in names if name.startswith("--")}
    named = {FLAG_SETTINGS.get(name, name): value for name, value in named.items()}
    for word in ctx.args:
        if word.startswith("-") and not word.startswith("--") and not isinstance(parse_value(word), (int, float)):
            raise ConfigError(f"unknown flag '{word}'; see --help, or give settings as --key value")
    for file in settings_files(ctx.args):
        values = read_toml(file)
        if values.keys() >= RECIPE_TABLES:
            raise ConfigError(
                f"{file} is a recipe of rove train; check it with rove train ENV --recipe {file} --dry-run"
            )
        confirm_foreign(Path(file), values["config"] if values.keys() >= RUN_CONFIG else values, kind)
    return load(kind, named, list(ctx.args), bare, flags)


def settings_files(words: Sequence[str]) -> list[str]:
    """Return the settings files that command-line words name with "@"."""
    files: list[str] = []
    previous = ""
    for word in words:
        if previous == "@":
            files.append(word)
        elif word.startswith("@") and word != "@":
            files.append(word[1:])
        previous = word
    return files


def confirm_foreign(file: Path, values: JsonMapping, kind: Any = None, overridden: Iterable[str] = ()) -> None:
    """Ask before using settings in a run folder that this user's rove did not write.

    Args:
        kind: the settings struct, for its defaults.
    """
    risky = foreign_settings(file, values, kind, overridden)
    if not risky:
        return
    rows = "\n".join(f"  {name} = {as_json(value)}" for name, value in risky.items())
    question = (
        f"{file} was not written by rove for you. It names code, addresses, variables or files that this command would use:\n"
        f"{rows}\nUse them?"
    )
    if not confirmed(question, f"check these settings, then pass {YES_FLAG} to use them"):
        raise ConfigError(f"{file} is not used; give the settings that you trust as flags")
    seal(file)


def json_object(text: str | None, flag: str) -> JsonObject | None:
    """Return the value of a flag that takes a JSON object."""
    if text is None:
        return None
    value = parse_value(text)
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} takes a JSON object like '{{\"seed\": 1}}', got {text!r}")
    return value


class _Confirmation:
    assume_yes = False


def assume_yes(yes: bool) -> None:
    """Set whether all questions are answered with yes."""
    _Confirmation.assume_yes = yes


def confirmed(question: str, otherwise: str) -> bool:
    """Ask the user a yes/no question in the terminal; with --yes, return True without asking.

    Args:
        otherwise: Advice for the error message if there is no terminal.
    """
    if _Confirmation.assume_yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{question} There is no terminal to ask in: {otherwise}")
    return click.confirm(inert(question), err=True)


def help_all_option(load: Callable[[], type[msgspec.Struct]]) -> Callable[[Any], Any]:
    """Return a decorator that adds `--help-all`, which lists every setting of the command.

    Args:
        load: Imports and returns the settings struct; called only if the flag is given.
    """

    def show(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
        if not requested or ctx.resilient_parsing:  # shell completion parses without running anything
            return
        formatter = ctx.make_formatter()
        formatter.write(f"Settings of {ctx.command_path}: --KEY VALUE on the command line, KEY = VALUE in @ FILE.\n\n")
        for setting in settings_of(load()):
            default = "required" if setting.default == "required" else f"default: {setting.default}"
            formatter.write(f"{setting.name}  ({setting.type}; {default})\n")
            if setting.meaning:
                with formatter.indentation():
                    formatter.write_text(setting.meaning)
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="List every setting with its meaning and default, and exit.",
    )
