"""`rove play`: play an environment in the terminal, and replay recorded games."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from rove.cli.common import hint
from rove.cli.environments import hub_option
from rove.cli.options import (
    api_key_var_option,
    base_url_option,
    device_option,
    env_args_option,
    env_dir_option,
    examples,
    in_range,
    isolated_option,
    isolated_python_option,
    json_object,
    max_tokens_option,
    template_options,
    trust_option,
)
from rove.clients.named import NamedClient
from rove.core.errors import ConfigError, RunError, as_json
from rove.core.messages import AssistantMessage, text_of
from rove.core.plain import JsonMapping
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.ranges import NonNegativeFloat, NonNegativeInt, Port
from rove.core.records import RolloutRecord
from rove.core.renderings import Rendering
from rove.envs.environment import Environment
from rove.envs.multi_turn import TwoPlayer, env_with_opponent
from rove.remote.environment import RemoteEnv
from rove.remote.isolation import Isolation
from rove.remote.loading import open_environment
from rove.rendering.tool_calls import FORMATS, Call, read_calls
from rove.rollouts.replay_cases import ReplayCase, run_replay_cases
from rove.runs.run import Run
from rove.stages.clients import API_KEY_VAR, is_folder, make_client
from rove.stages.reporter import ConsoleReporter
from rove.stages.tables import message_text
from rove.statistics.format import number
from rove.utils.console import SafeConsole, styled
from rove.utils.event_loop import run_async
from rove.utils.terminal_text import inert
from rove.viewer.play_roles import PlayRoles, RoleOptions, one_game, read_roles, unused_roles
from rove.viewer.play_session import PERSON_ROLES

TOOL_CALL_EXAMPLE = FORMATS[0].write([Call("NAME", {"ARGUMENT": "VALUE"})]).replace("\n", "")
"""The format in which a person types a tool call."""


def show_new(messages: Sequence[JsonMapping], num_printed: int, console: Console, role: str = "") -> int:
    """Print the environment's messages that follow the first `num_printed` messages; return the number of all messages."""
    if len(messages) <= num_printed:  # a new conversation, such as the next query of a role
        num_printed = 0
    for message in messages[num_printed:]:
        if message["role"] != "assistant":
            sender = f"{message['role']} to {role}" if role else message["role"]
            console.print(styled((sender, "cyan"), f"\n{text_of(message)}"))
    return len(messages)


class Person:
    """A client that shows the conversation in the terminal and reads the answer from it.

    Args:
        role: Name of the model role; "" is the model's own role.
    """

    max_concurrent = 1

    def __init__(self, console: Console, role: str = ""):
        self.console = console
        self.role = role
        self._shown = 0
        self._in_roles: dict[str, Person] = {}

    def in_role(self, role: str) -> Client:
        """Return the same person in another role."""
        # One client per role, because each remembers how many of its messages it has shown.
        return self._in_roles.setdefault(role, Person(self.console, role))

    async def respond(self, request: Request) -> Response:
        """Show new messages and read a line."""
        if request.tools and not self._shown:
            tools = (as_json(definition["function"]) for definition in request.tools)
            self.console.print("tools:", *tools, f"call one: {TOOL_CALL_EXAMPLE}", sep="\n  ")
        self._shown = show_new(request.messages, self._shown, self.console, self.role)
        line = read_line(f"you as {self.role}> " if self.role else "you> ")
        text, calls = read_calls(line, FORMATS[0])
        if calls:
            return Response(AssistantMessage(text or None, tool_calls=calls))
        return Response(AssistantMessage(text))

    async def close(self) -> None:
        """Do nothing: a person holds no resources."""


class PrintingClient:
    """A client that prints responses as they arrive, and perhaps the environment's messages."""

    max_concurrent = 1

    def __init__(self, client: Client, name: str, console: Console, with_environment: bool):
        self.client = client
        self.name = name
        self.console = console
        self.with_environment = with_environment
        self._shown = 0
        self._in_roles: dict[str, PrintingClient] = {}

    def in_role(self, role: str) -> Client:
        """Return the same model in another role."""
        name = f"{self.name} as {role}"
        return self._in_roles.setdefault(role, PrintingClient(self.client, name, self.console, self.with_environment))

    async def respond(self, request: Request) -> Response:
        """Forward the request and print the response."""
        if self.with_environment:
            self._shown = show_new(request.messages, self._shown, self.console)
        response = await self.client.respond(request)
        self.console.print(styled((self.name, "magenta"), f" {message_text(response.message)}"))
        return response

    async def close(self) -> None:
        """Close the wrapped client."""
        await self.client.close()


def read_line(prompt: str) -> str:
    """Read a line from the terminal; the end of input stops the program like Ctrl-C.

    This blocks the event loop on purpose: no other task runs, and Ctrl-C could not end a thread that waits for input.
    """
    try:
        return input(inert(prompt)).strip()
    except EOFError:
        raise KeyboardInterrupt from None


async def person_as_opponent(view: str, legal: list[str], board: Rendering | None = None) -> str:
    """Show the position and read a legal move: an `Opponent` of a two-player environment."""
    click.echo(inert(view))
    while True:
        move = read_line(f"your move ({', '.join(legal)})> ")
        if move in legal:
            return move
        click.echo(inert(f"'{move}' is not a legal move"))


class GameSetup(NamedTuple):
    """The participants of a game in the terminal."""

    env: Environment
    client: Client
    roles: PlayRoles


def set_up_game(
    env: Environment,
    model_client: Client | None,
    model: str | None,
    watch: bool,
    person_roles: Sequence[str],
    role_clients: Mapping[str, Client],
    console: Console,
) -> GameSetup:
    """Assign the model's role, the opponent and all model roles to models and the person at the terminal.

    Args:
        model_client: The model that acts; None = the person.
    """
    person = Person(console)
    roles = PlayRoles(
        role_clients,
        lambda role: person.in_role(role) if any(fnmatchcase(role, name) for name in person_roles) else None,
    )
    if model_client is None or model is None:
        return GameSetup(env, person, roles)
    is_opponent = False
    if not (watch or person_roles):
        if isinstance(env, TwoPlayer) and env.two_player:
            env, is_opponent = env_with_opponent(env, person_as_opponent), True
        else:
            console.print(f"'{env.env_id}' has no second role, so you watch; omit -m to play the model's role")
    printing = PrintingClient(model_client, model.rsplit("/", 1)[-1], console, not (is_opponent or person_roles))
    return GameSetup(env, printing, roles)


def role_hints(roles: PlayRoles, options: RoleOptions) -> list[str]:
    """Return hints after a game: unused role names, or roles that the person could play."""
    hints = unused_roles([*options.person, *options.models], roles.used)
    if roles.used and not options.person and not options.models:
        free = ", ".join(f"--model-role {shlex.quote(role)}" for role in roles.used)
        hints.append(f"play one of its other roles yourself: {free}")
    return hints


async def play(setup: GameSetup, model: str, sampling: SamplingParams, seed: int) -> RolloutRecord:
    """Run one game, then close the clients and the environment."""
    try:
        return await one_game(setup.env, setup.client, model, sampling, seed, setup.roles)
    finally:
        await setup.client.close()
        await setup.roles.close()
        await setup.env.tear_down()


def print_result(record: RolloutRecord, model: str | None, console: Console) -> None:
    """Print the environment's last message, and the reward or the error."""
    for message in record.completion[-1:]:
        if message["role"] != "assistant":
            console.print("message to the model" if model is not None else "user", style="cyan")
            console.print(text_of(message))
    if record.error is not None:
        console.print(f"{record.error.phase}: {record.error.message}", style="red")
    elif record.scores is not None:
        subject = "your reward" if model is None else "reward of the model"
        values = {**record.scores.rewards, **record.scores.metrics}
        scores = "  ".join(f"{name} {value:g}" for name, value in values.items())
        console.print(f"{subject}: {record.scores.reward:.2f}  {scores}")


def replay(
    env: Environment, client: Client, model: str, sampling: SamplingParams, folder: Path, console: Console
) -> int:
    """Replay the games of a run folder and print the results; return how many games have a lower reward."""
    run = Run(folder)
    recorded_role = run.config()["identity"].get("role", "")
    role = "" if recorded_role in PERSON_ROLES else str(recorded_role)

    async def collect() -> list[ReplayCase]:
        try:
            games = run_replay_cases(env, client, run.finished(), model=model, sampling=sampling, role=role)
            return [case async for case in games]
        finally:
            await client.close()
            await env.tear_down()

    cases = run_async(collect())
    if not cases:
        raise RunError(f"{folder} has no games; record some: rove play ENV -m MODEL --web --run-dir {folder}")
    console.print(replay_table(cases))
    worse = sum(case.is_worse for case in cases)
    console.print(f"{worse} of {len(cases)} games have a lower reward than recorded")
    return worse


def replay_table(cases: list[ReplayCase]) -> Table:
    """Return a table with each game's recorded and new reward."""
    table = Table(title="replayed games")
    for name in ("game", "example", "recorded", "now", ""):
        table.add_column(name, justify="right" if name else "left")
    for position, case in enumerate(cases, start=1):
        new_reward = "failed" if case.now.reward is None else number(case.now.reward)
        change = "the same"
        if case.is_worse:
            change = "worse"
        elif case.now.reward is not None and case.now.reward > (case.then.reward or 0.0):
            change = "better"
        table.add_row(str(position), str(case.then.example_id), number(case.then.reward or 0.0), new_reward, change)
    return table


def check_options(
    env: Environment, env_id: str, model: str | None, watch: bool, roles: Sequence[str], cases: Path | None
) -> None:
    """Refuse combinations of options that exclude each other."""
    if roles and cases is not None:
        raise ConfigError(
            "--model-role and --replay exclude each other: a replay uses the recorded roles; omit one of them"
        )
    if roles and isinstance(env, RemoteEnv):
        raise ConfigError(
            f"--model-role {roles[0]}: '{env_id}' runs in a separate process and queries models there; load it in this "
            "process: without --isolated, and from its folder (--env-dir) or installed with pip"
        )
    if model is None and (watch or cases is not None):
        raise ConfigError(f"{'--watch' if watch else '--replay'} needs a model: -m MODEL")


@click.command(
    epilog=examples(
        "rove play tictactoe                          # play the model's role yourself",
        "rove play tictactoe -m scripted:optimal      # play against a scripted policy",
        "rove play tictactoe -m models/mine --watch   # watch a model play",
        "rove play tictactoe -m models/mine --web     # play in the browser and keep games",
    )
)
@click.argument("env_id", metavar="ENV")
@click.option(
    "-m",
    "--model",
    help="Model to play against, or to watch in a one-player environment.  [default: you play the model's role]",
)
@click.option("--watch", is_flag=True, help="Watch the model instead of playing against it.")
@click.option(
    "--model-role",
    "given_roles",
    metavar="NAME[=MODEL]",
    multiple=True,
    help="Play the model role NAME (rove.query) yourself, or let MODEL play it; repeatable.  "
    "[default: the environment's own models]",
)
@env_args_option
@env_dir_option
@click.option(
    "-T",
    "--temperature",
    type=in_range(NonNegativeFloat),
    default=0.0,
    show_default=True,
    help="Sampling temperature of the model.",
)
@max_tokens_option
@base_url_option
@api_key_var_option
@trust_option
@device_option
@template_options
@isolated_option
@isolated_python_option
@hub_option
@click.option(
    "--seed",
    type=in_range(NonNegativeInt),
    default=None,
    help="Random seed that chooses the example.  [default: random]",
)
@click.option("--web", is_flag=True, help="Play in the browser, one game after another.")
@click.option(
    "--port", type=in_range(Port), default=8124, show_default=True, help="Port for --web; 0 picks a free one."
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder for the games that --web records.  [default: runs/played--ENV--MODEL--hash]",
)
@click.option(
    "--replay",
    "cases",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Let MODEL replay the games in this run folder; exit status 1 if a reward is lower than recorded.",
)
def command(
    env_id: str,
    model: str | None,
    watch: bool,
    given_roles: tuple[str, ...],
    env_args: str | None,
    env_dir: str | None,
    temperature: float,
    max_tokens: int | None,
    base_url: str | None,
    api_key_var: str | None,
    trust_remote_code: bool | None,
    isolated: bool | None,
    isolated_python: str | None,
    device: str | None,
    seed: int | None,
    web: bool,
    port: int,
    run_dir: Path | None,
    cases: Path | None,
    **template_settings: Any,
) -> None:
    """Play ENV against MODEL, watch MODEL play, or (without -m) play the model's role; the rubric scores every game."""
    console = SafeConsole()
    role_options = read_roles(given_roles, watch, model is not None)
    isolation = Isolation(bool(isolated) or isolated_python is not None, isolated_python)
    env = open_environment(env_id, env_dir, json_object(env_args, "-a"), isolation)
    check_options(env, env_id, model, watch, given_roles, cases)
    sampling = SamplingParams.from_args({"temperature": temperature, "max_tokens": max_tokens})

    def client_of(name: str) -> Client:
        # --device and the chat template are for -m, and for model roles that are model folders.
        takes_options = name == model or is_folder(name)
        return make_client(
            name,
            env,
            base_url,
            api_key_var or API_KEY_VAR,
            trust_remote_code=bool(trust_remote_code),
            device=device if device and takes_options else "auto",
            reporter=ConsoleReporter(console),
            **(template_settings if takes_options else {}),
        )

    model_client = client_of(model) if model is not None else None
    if cases is not None:
        assert model is not None
        assert model_client is not None
        if replay(env, model_client, model, sampling, cases, console):
            raise click.exceptions.Exit(1)
        return
    role_clients = {
        name: NamedClient(client_of(role_model), role_model) for name, role_model in role_options.models.items()
    }
    if web:
        from rove.cli.play_web import play_in_browser

        play_in_browser(
            env, env_id, model_client, model, watch, role_options, role_clients, sampling, seed, port, run_dir, console
        )
        return
    setup = set_up_game(env, model_client, model, watch, role_options.person, role_clients, console)
    chosen = random.randrange(1 << 30) if seed is None else seed
    try:
        record = run_async(play(setup, model or "", sampling, chosen))
    except KeyboardInterrupt:
        click.secho(f"\nstopped; play the same game again: --seed {chosen}", fg="yellow", err=True)
        raise click.exceptions.Exit(130) from None
    print_result(record, model, console)
    hint(console, *role_hints(setup.roles, role_options), f"play the same game again: --seed {chosen}")
