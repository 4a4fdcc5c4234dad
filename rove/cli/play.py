"""`rove play`: sit down in an environment yourself."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from rove.cli.clients import make_client
from rove.cli.common import hint, json_object, run_async, trust_option
from rove.cli.environments import hub_option
from rove.cli.play_roles import Given, Named, Roles, never_asked, read_roles
from rove.cli.rollout_text import said
from rove.core.errors import ConfigError, in_json
from rove.core.messages import AssistantMessage, text_of
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import RolloutRecord
from rove.core.renderings import Rendering
from rove.envs.environment import Environment
from rove.envs.multi_turn import TwoPlayer
from rove.remote.environment import AwayEnv
from rove.remote.loading import Isolation, open_environment
from rove.rendering.tool_calls import FORMATS, Call, read_calls
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan


def show_new(messages: Sequence[Mapping[str, Any]], shown: int, console: Console, role: str = "") -> int:
    """Print what the environment said, to a role, since message `shown`; returns how many messages have been shown now."""
    for message in messages[shown if len(messages) > shown else 0 :]:
        if message["role"] != "assistant":
            who = f"{message['role']} to {role}" if role else message["role"]
            console.print(f"[cyan]{escape(who)}[/cyan]\n{escape(text_of(message))}")
    return len(messages)


CALL = FORMATS[0].write([Call("NAME", {"ARGUMENT": "VALUE"})]).replace("\n", "")
"""How a person calls a tool."""


class Person:
    """A client that shows what the environment says and asks whoever sits at the terminal.

    Args:
        console: the terminal.
        role: the name of the role; "" is the model's.
    """

    max_concurrent = 1

    def __init__(self, console: Console, role: str = ""):
        self.console = console
        self.role = role
        self._shown = 0
        self._others: dict[str, Person] = {}

    def in_role(self, role: str) -> Client:
        """The same person in another role."""
        return self._others.setdefault(role, Person(self.console, role))

    async def respond(self, request: Request) -> Response:
        """Show what is new in the conversation and read a line."""
        if request.tools and not self._shown:
            told = (in_json(definition["function"]) for definition in request.tools)
            self.console.print("tools:", *told, f"call one: {CALL}", sep="\n  ", markup=False)
        self._shown = show_new(request.messages, self._shown, self.console, self.role)
        text, calls = read_calls(ask(f"you as {self.role}> " if self.role else "you> "), FORMATS[0])
        return Response(AssistantMessage(text or None, tool_calls=calls) if calls else AssistantMessage(text))

    async def close(self) -> None:
        """Nothing to free."""


class Narrated:
    """A client whose answers are shown as they come, with what the environment says if `both` is set."""

    max_concurrent = 1

    def __init__(self, client: Client, name: str, console: Console, both: bool):
        self.client = client
        self.name = name
        self.console = console
        self.both = both
        self._shown = 0
        self._others: dict[str, Narrated] = {}

    def in_role(self, role: str) -> Client:
        """The same model, asked in another role."""
        name = f"{self.name} as {role}"
        return self._others.setdefault(role, Narrated(self.client, name, self.console, self.both))

    async def respond(self, request: Request) -> Response:
        """Pass the request on and print the answer."""
        if self.both:
            self._shown = show_new(request.messages, self._shown, self.console)
        response = await self.client.respond(request)
        self.console.print(f"[magenta]{escape(self.name)}[/magenta] {escape(said(response.message))}")
        return response

    async def close(self) -> None:
        """Close the client behind."""
        await self.client.close()


def ask(prompt: str) -> str:
    """A line from the terminal; the end of input stops the program like Ctrl-C.

    It blocks the event loop, in which nothing else has to go on: Ctrl-C could not end a thread that waits for input.
    """
    try:
        return input(prompt).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def take_role(env: TwoPlayer, console: Console) -> None:
    """Give the environment's other role to whoever sits at the terminal."""

    async def opponent(view: str, legal: list[str], board: Rendering | None = None) -> str:
        console.print(view, markup=False)
        while True:
            move = ask(f"your move ({', '.join(legal)})> ")
            if move in legal:
                return move
            console.print(f"'{move}' is not one of them", markup=False)

    env.opponent = opponent


def at_terminal(
    env: Environment,
    env_id: str,
    player: Client | None,
    model: str | None,
    watch: bool,
    mine: Sequence[str],
    others: Mapping[str, Client],
    console: Console,
) -> tuple[Client, Roles]:
    """Who answers in the model's role, and in all others, where a person sits at the terminal.

    Args:
        player: the model that plays; None = the person does.
        mine: patterns of the roles that the person has asked for.
        others: those that models have.
    """
    me = Person(console)
    roles = Roles(others, lambda role: me.in_role(role) if any(fnmatchcase(role, name) for name in mine) else None)
    if player is None or model is None:
        return me, roles
    opponent = env if not (watch or mine) and isinstance(env, TwoPlayer) and env.two_player else None
    if opponent is not None:
        take_role(opponent, console)
    elif not (watch or mine):
        console.print(f"'{env_id}' has no second role, so you watch; take the model's own role without -m")
    return Narrated(player, model.rsplit("/", 1)[-1], console, both=opponent is None and not mine), roles


def after_game(roles: Roles, given: Given) -> list[str]:
    """What there is to say of roles after a game: names that were wrong, or where else one could have sat."""
    wrong = never_asked([*given.mine, *given.models], roles.asked)
    free = [] if given.mine or given.models else [f"--model-role {shlex.quote(role)}" for role in roles.asked]
    return [*wrong, *([f"others were asked, too; sit there yourself: {', '.join(free)}"] if free else [])]


async def one_game(
    env: Environment, client: Client, model: str, sampling: SamplingParams, seed: int, roles: Roles | None = None
) -> RolloutRecord:
    """One rollout with the given client on an example chosen by `seed`."""
    example = random.Random(seed).choice(env.get_eval_dataset(1000))
    groups = plan([example], 1, seed)
    rollouts = run_groups(env, client, groups, model=model, sampling=sampling, max_concurrent=1, model_roles=roles)
    (record,) = [record async for record in rollouts]
    return record


async def play(
    env: Environment, client: Client, model: str, sampling: SamplingParams, seed: int, roles: Roles
) -> RolloutRecord:
    """The same, and nothing after it."""
    try:
        return await one_game(env, client, model, sampling, seed, roles)
    finally:
        await client.close()
        await roles.close()
        await env.tear_down()


def tell_result(record: RolloutRecord, model: str | None, console: Console) -> None:
    """The environment's last words, and the reward or the error."""
    for message in record.completion[-1:]:
        if message["role"] != "assistant":
            console.print("[cyan]the model is told[/cyan]" if model is not None else "[cyan]user[/cyan]")
            console.print(text_of(message), markup=False)
    if record.error is not None:
        console.print(f"[red]{record.error.phase}: {escape(record.error.message)}[/red]")
    elif record.scores is not None:
        who = "you" if model is None else "the model"
        values = {**record.scores.rewards, **record.scores.metrics}
        console.print(
            f"reward of {who}: {record.scores.reward:.2f}  " + "  ".join(f"{n} {v:g}" for n, v in values.items())
        )


@click.command()
@click.argument("env_id", metavar="ENV")
@click.option("-m", "--model", help="Model to play against; without it you take the model's own role.")
@click.option("--watch", is_flag=True, help="Only watch the model play the environment.")
@click.option(
    "--model-role",
    "given_roles",
    metavar="NAME[=MODEL]",
    multiple=True,
    help="Sit where the environment asks the player NAME (rove.query), or let MODEL answer there; again for more roles. "
    "[default: whom the environment asks]",
)
@click.option("-a", "--env-args", help="Environment arguments as JSON.")
@click.option("--env-dir", help="Folder to look for ENV in first.")
@click.option(
    "-T", "--temperature", type=float, default=0.0, show_default=True, help="Sampling temperature of the model."
)
@click.option("-t", "--max-tokens", type=int, default=None, help="Most tokens in one answer.")
@click.option("-b", "--base-url", help="An OpenAI-compatible endpoint.")
@click.option(
    "-k", "--api-key-var", default="OPENAI_API_KEY", show_default=True, help="Environment variable with the key."
)
@trust_option
@click.option("--isolated", is_flag=True, help="Load ENV in a process of its own, which may crash or hang.")
@click.option("--isolated-python", help="The python of a virtual environment for it.  [default: one is made]")
@hub_option
@click.option("--seed", type=int, default=None, help="Which example; random when not given.")
@click.option("--web", is_flag=True, help="Play in the browser, game after game.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8124, show_default=True, help="With --web; 0 = any that is free."
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="With --web: where games are kept.  [default: runs/played--…]"
)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="Let MODEL play the games that were kept in this run folder again; status 1 if one goes worse.",
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
    api_key_var: str,
    trust_remote_code: bool | None,
    isolated: bool,
    isolated_python: str | None,
    seed: int | None,
    web: bool,
    port: int,
    run_dir: Path | None,
    cases: Path | None,
) -> None:
    """Play ENV against MODEL, watch MODEL play it, or (without -m) take the model's role; scored by the same rubric."""
    console = Console(highlight=False)
    isolation = Isolation(isolated or isolated_python is not None, isolated_python)
    seated = read_roles(given_roles, watch, model is not None)
    if given_roles and cases is not None:
        raise ConfigError(
            "--model-role goes without --cases: who sat in a kept game sits there again; leave one of them out"
        )
    env = open_environment(env_id, env_dir, json_object(env_args, "-a"), isolation)
    if given_roles and isinstance(env, AwayEnv):
        raise ConfigError(
            f"--model-role {given_roles[0]}: '{env_id}' has a process of its own and asks others there; load it here, without "
            "--isolated and from its folder (--env-dir) or installed with pip"
        )
    sampling = SamplingParams.from_args({"temperature": temperature, "max_tokens": max_tokens})
    options = {"base_url": base_url, "api_key_var": api_key_var, "trust_remote_code": bool(trust_remote_code)}
    client_of = partial(make_client, env=env, **options)
    if model is None and watch:
        raise ConfigError("--watch needs a model to watch: -m MODEL")
    if cases is not None:
        from rove.cli.play_cases import run_cases

        if model is None:
            raise ConfigError("--cases needs a model that plays them: -m MODEL")
        player = client_of(model)
        if run_cases(env, player, model, sampling, cases, console):
            raise click.exceptions.Exit(1)
        return
    player = client_of(model) if model is not None else None
    others = {name: Named(client_of(other), other) for name, other in seated.models.items()}
    if web:
        from rove.cli.play_web import play_in_browser

        play_in_browser(env, env_id, player, model, watch, seated, others, sampling, seed, port, run_dir, console)
        return
    client, roles = at_terminal(env, env_id, player, model, watch, seated.mine, others, console)
    chosen = random.randrange(1 << 30) if seed is None else seed
    try:
        record = run_async(play(env, client, model or "", sampling, chosen, roles))
    except KeyboardInterrupt:
        click.secho(f"\nyou left the game; the same game again: --seed {chosen}", fg="yellow", err=True)
        raise click.exceptions.Exit(130) from None
    tell_result(record, model, console)
    hint(console, *after_game(roles, seated), f"the same game again: --seed {chosen}")
