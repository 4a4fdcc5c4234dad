"""`rove play` in environments with model roles: a person or a named model answers `rove.query`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from commands import Rove, in_process_rove, write_environment

import rove as vf
from rove.cli.play_web import folder_of, keep_game
from rove.core.errors import ConfigError
from rove.core.protocols import Client, SamplingParams
from rove.envs.loading import load_environment
from rove.runs.run import Run
from rove.viewer.play_roles import PlayRoles, RoleOptions, one_game, read_roles, unused_roles
from rove.viewer.play_session import PlayClient, PlaySession, make_play_app

HAGGLE = """
import asyncio
import rove as vf

def offers(messages, state, rng):
    return f"{10 * len([m for m in messages if m['role'] == 'assistant']) + 10}?"

def greedy(messages, state, rng):
    return "Too little."

def yes(messages, state, rng):
    return "Sold."

class Haggle(vf.MultiTurnEnv):
    def __init__(self, sellers, own_model, **kwargs):
        super().__init__(**kwargs)
        self.sellers, self.own_model = sellers, own_model

    async def run(self, state, turn):
        state["asked_of_the_model"] = turn
        await super().run(state, turn)

    async def env_response(self, messages, state, **kwargs):
        told = f"The buyer says: {messages[-1]['content']}"
        said = await asyncio.gather(*(self.ask_seller(state, told) for _ in range(self.sellers)))
        if "Sold." in [one["content"] for one in said]:
            state["final_env_response"] = "It is yours."
        return said[0]["content"]

    async def ask_seller(self, state, told):
        if self.own_model:
            return await state["asked_of_the_model"](state, [vf.UserMessage(told)], role="seller")
        return await vf.query(state, told, vf.ScriptedClient(greedy, "greedy"), role="seller", model="greedy")

def sold(state):
    return float("Sold." in [step.completion[0]["content"] for step in state["model_roles"]["seller"]])

def load_environment(num_examples=3, seed=0, turns=2, sellers=1, own_model=False):
    rows = [{"question": f"Buy lamp {i}."} for i in range(num_examples)]
    rubric = vf.Rubric([sold], [1.0])
    players = {"buyer": offers, "yes": yes, "no": greedy}
    return Haggle(sellers, own_model, dataset=rows, max_turns=turns, rubric=rubric, policies=players)
"""
PLAY = ("play", "haggle", "--env-dir", "mine", "--seed", "1", "-m", "scripted:buyer")


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    write_environment(tmp_path / "mine", "haggle", HAGGLE)
    return in_process_rove(tmp_path, monkeypatch, capsys)


@asynccontextmanager
async def play_session(
    folder: Path, roles: Sequence[str], has_model: bool = True, **args: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Play games in the browser's session; yield a function that waits for a state and one that sends an action."""
    env = load_environment("haggle", str(folder / "mine"), **args)
    player: Client | None = vf.ScriptedClient(env.policies["buyer"]) if has_model else None
    session = PlaySession("haggle", "buyer" if has_model else "", roles)

    def store_game(game: vf.RolloutRecord) -> str:
        return str(keep_game(folder / "kept", {"env": "haggle", "model": "buyer", "role": session.role}, game))

    async def games() -> None:
        for seed in range(10):
            play_roles = PlayRoles(
                {}, lambda role: PlayClient(session, None, role) if session.is_person_role(role) else None
            )
            record = await one_game(env, PlayClient(session, player), "m", SamplingParams(), seed, play_roles)
            session.add_roles(play_roles.used if has_model else ())
            await session.finish(record)

    async with TestClient(TestServer(make_play_app(session, store_game))) as client:

        async def state(condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
            game_state = await (await client.get("/api/game")).json()
            while not condition(game_state):
                game_state = await (await client.get("/api/game", params={"after": game_state["number"]})).json()
            return game_state

        async def act(name: str, **body: Any) -> None:
            answer = await client.post(f"/api/{name}", json=body)
            assert answer.status == 200, await answer.text()

        task = asyncio.create_task(games())
        try:
            yield state, act
        finally:
            task.cancel()


def test_without_options_the_environment_queries_its_own_models(rove: Rove):
    done = rove(*PLAY)
    assert done.status == 0, done.err
    assert "'haggle' has no second role, so you watch" in done.out and "Too little." in done.out
    assert "reward of the model: 0.00" in done.out
    assert "play one of its other roles yourself: --model-role seller" in done.out


def test_a_person_takes_a_named_role(rove: Rove):
    done = rove(*PLAY, "--model-role", "seller", stdin="Never.\nSold.\n")
    assert done.status == 0, done.err
    assert "user to seller\nThe buyer says: 10?" in done.out and "The buyer says: 20?" in done.out
    assert done.out.count("you as seller> ") == 2 and "scripted:buyer 10?" in done.out
    assert "reward of the model: 1.00" in done.out and "other roles yourself" not in done.out
    assert rove(*PLAY, "--model-role", "sell*", stdin="Never.\nSold.\n").out == done.out


def test_a_named_model_takes_a_role_also_when_a_person_plays_the_main_role(rove: Rove):
    done = rove(*PLAY, "--model-role", "seller=scripted:yes")
    assert (done.status, "reward of the model: 1.00" in done.out) == (0, True), done.out + done.err
    with_person = rove(*PLAY[:-2], "--model-role", "seller=scripted:yes", stdin="Five?\n")
    assert (with_person.status, "your reward: 1.00" in with_person.out) == (0, True), with_person.out + with_person.err
    assert "you as seller" not in with_person.out


def test_a_role_that_was_never_queried_is_reported(rove: Rove):
    done = rove(*PLAY, "--model-role", "judge")
    assert done.status == 0
    assert "the environment never queried the role 'judge'; it queried: seller" in done.out
    other_run = rove(
        "play", "reverse_text", "-m", "scripted:oracle", "--model-role", "judge=scripted:oracle", "--seed", "1"
    )
    assert "the environment never queried the role 'judge'; it queried no model role (rove.query)" in other_run.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--model-role", "=x"),
            "--model-role is '=x'; expected --model-role NAME for yourself, or --model-role NAME=MODEL",
        ),
        (("--model-role", "seller="), "expected --model-role NAME for yourself"),
        (("--model-role", "seller", "--model-role", "seller=scripted:yes"), "--model-role seller is given twice"),
        (("--model-role", "seller", "--watch"), "exclude each other"),
        (("--model-role", "seller=scripted:nobody"), "has no scripted policy 'nobody'"),
        (("--model-role", "seller", "--isolated"), "'haggle' runs in a separate process and queries models there"),
        (("--model-role", "seller", "--replay", "kept"), "--model-role and --replay exclude each other"),
    ],
)
def test_wrong_options_are_refused_before_the_game(rove: Rove, words: tuple[str, ...], message: str):
    done = rove(*PLAY, *words)
    assert (done.status != 0, message in done.err) == (True, True), done.out + done.err


def test_a_role_for_the_person_needs_a_model():
    with pytest.raises(
        ConfigError, match=r"--model-role seller is your role; name the model that plays the main role: -m MODEL"
    ):
        read_roles(["seller"], watch=False, has_model=False)
    assert read_roles(["b=x", "a"], watch=False, has_model=True) == RoleOptions(["a"], {"b": "x"})


async def test_a_person_precedes_named_models_and_these_precede_the_environments_own():
    pattern_client, named_client, own_client = (
        vf.ScriptedClient(lambda messages, state, rng: "", name) for name in ("1", "2", "own")
    )
    roles = PlayRoles({"a*": pattern_client}, lambda role: named_client if role == "ab" else None)
    assert [roles.get(role, own_client) for role in ("ab", "ac", "b")] == [named_client, pattern_client, own_client]
    assert list(roles.used) == ["ab", "ac", "b"] and unused_roles(["a?"], roles.used) == []
    assert [folder_of(role) for role in ("model", "player *", "*")] == ["by-person", "as-player", "as-any"]


def is_over(game: dict[str, Any]) -> bool:
    return game["over"]


def has_prompt(game: dict[str, Any]) -> bool:
    return game["prompt"] is not None


async def play_and_watch(folder: Path) -> None:
    """Play a game in which the person sells at the second offer, then watch another one."""
    async with play_session(folder, ["seller", "none", "model"]) as (state, act):
        game = await state(has_prompt)
        assert (game["prompt"]["role"], game["prompt"]["legal"]) == ("seller", None)
        assert game["prompt"]["messages"] == [{"role": "user", "content": "The buyer says: 10?"}]
        await act("move", number=game["number"], text="Never.")
        await act("move", number=(await state(has_prompt))["number"], text="Sold.")
        assert (await state(is_over))["scores"]["reward"] == 1.0
        await act("keep")
        await act("again", role="none")  # the environment's own model answers differently
        game = await state(lambda latest_game: is_over(latest_game) and latest_game["role"] == "none")
        assert (game["scores"]["reward"], game["model_roles"]) == (0.0, ["seller", "none", "model"])


def test_a_game_of_a_person_in_a_role_is_stored_as_a_replay_case(rove: Rove, tmp_path: Path):
    asyncio.run(play_and_watch(tmp_path))
    [game] = Run(tmp_path / "kept").rollouts()
    assert [step.completion[0]["content"] for step in game.model_roles["seller"]] == ["Never.", "Sold."]
    second_run = rove("play", "haggle", "--env-dir", "mine", "-m", "scripted:buyer", "--replay", "kept")
    assert (second_run.status, "0 of 1 games have a lower reward" in second_run.out) == (0, True), (
        second_run.out + second_run.err
    )
    other_run = rove("play", "haggle", "--env-dir", "mine", "-m", "scripted:no", "--replay", "kept")
    assert (other_run.status, "1 of 1 games have a lower reward" in other_run.out) == (1, True), (
        other_run.out + other_run.err
    )


@pytest.mark.usefixtures("rove")
async def test_queried_roles_are_offered_and_concurrent_queries_are_shown_in_turn(tmp_path: Path):
    async with play_session(tmp_path, ["none", "model"], turns=1, sellers=2) as (state, act):
        assert (await state(is_over))["model_roles"] == ["none", "model", "seller"]
        await act("again", role="seller")
        for text in ("Never.", "Sold."):
            game = await state(has_prompt)
            assert game["prompt"]["messages"][0]["content"] == "The buyer says: 10?"
            await act("move", number=game["number"], text=text)
        assert (await state(lambda latest_game: is_over(latest_game) and latest_game["role"] == "seller"))["scores"][
            "reward"
        ] == 1.0


@pytest.mark.usefixtures("rove")
async def test_a_person_in_the_main_role_answers_every_query_of_the_model(tmp_path: Path):
    async with play_session(tmp_path, ["model"], has_model=False, own_model=True) as (state, act):
        game = await state(has_prompt)
        assert game["prompt"]["role"] == ""
        await act("move", number=game["number"], text="10?")
        game = await state(has_prompt)
        assert game["prompt"]["role"] == "seller"
        await act("move", number=game["number"], text="Sold.")
        game = await state(is_over)
        assert (game["scores"]["reward"], game["model_roles"]) == (1.0, ["model"])


def test_a_person_at_the_terminal_answers_every_query_of_the_model(rove: Rove):
    words = (*PLAY[:-2], "-a", '{"own_model": true}')
    done = rove(*words, stdin="10?\nSold.\n")
    assert done.status == 0, done.err
    assert "you as seller> " in done.out and "your reward: 1.00" in done.out
    watched = rove(*words, "-m", "scripted:yes")
    assert "scripted:yes as seller Sold." in watched.out, watched.out
