"""Test games in the browser: legal moves, turns, results, and saved games that can be used as training data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_folders import make_record

import rove as vf
from rove.core.protocols import Client, SamplingParams
from rove.envs.loading import load_environment
from rove.rollouts.export import RunRows
from rove.runs.run import Run
from rove.viewer.play_roles import one_game
from rove.viewer.play_session import PlayClient, PlaySession, make_play_app

Request = Callable[..., Any]


@asynccontextmanager
async def play_games(
    env: Any, role: str, player: Client | None, folder: Path, fields: Sequence[str] = ()
) -> AsyncIterator[tuple[Request, Request]]:
    """Run games of `env` in a session; yield a function that returns its state and a function that acts."""
    session = PlaySession(
        env.env_id, "somebody" if player else "", [role, "none"], fields, fields[-1] if fields else ""
    )
    if role == "opponent":
        env.opponent = session.ask

    def save(game: vf.RolloutRecord) -> str:
        with Run(folder) as run:
            run.start("eval", {"env": env.env_id, "model": "m"}, {})
            run.append_rollout(game)
        return str(folder)

    async def run_games() -> None:
        for seed in range(10):
            await session.finish(await one_game(env, PlayClient(session, player), "m", SamplingParams(), seed))

    async with TestClient(TestServer(make_play_app(session, save))) as client:

        async def state(known_number: int | str = "") -> dict[str, Any]:
            return await (await client.get("/api/game", params={"after": known_number})).json()

        async def act(name: str, status: int = 200, **body: Any) -> dict[str, Any]:
            answer = await client.post(f"/api/{name}", json=body)
            assert answer.status == status, await answer.text()
            return await answer.json()

        task = asyncio.create_task(run_games())
        try:
            yield state, act
        finally:
            task.cancel()


def tictactoe_and_policy() -> tuple[Any, Client]:
    """Return the environment tictactoe and a client of its optimal policy."""
    env = load_environment("tictactoe", num_examples=5)
    return env, vf.ScriptedClient(env.policies["optimal"])


async def wait_for(state: Request, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    game = await state()
    while not condition(game):
        game = await state(game["number"])
    return game


async def test_a_game_against_a_scripted_policy_is_saved_as_training_data(tmp_path: Path):
    env, player = tictactoe_and_policy()
    async with play_games(env, "opponent", player, tmp_path / "kept") as (state, act):
        game = await wait_for(state, lambda game_state: game_state["prompt"])
        assert "is not a legal move" in (await act("move", 400, number=game["number"], text="9"))["error"]
        assert "not your turn" in (await act("move", 400, number=game["number"] + 1, text="0"))["error"]
        assert "has not ended" in (await act("again", 400))["error"]
        assert "has not ended" in (await act("keep", 400))["error"]
        while not game["over"]:
            legal_moves = game["prompt"]["legal"]
            assert legal_moves == [
                text for row in game["prompt"]["board"]["rows"] for text, look in row if look == "free"
            ]
            assert set(legal_moves) == {word for word in game["prompt"]["view"].split() if word.isdigit()}
            await act("move", number=game["number"], text=legal_moves[0])
            game = await wait_for(state, lambda game_state: game_state["over"] or game_state["prompt"])
        assert game["scores"]["metrics"]["lost"] == 0.0  # the model's policy is optimal
        assert game["messages"][-1]["content"].split("\n")[0] in ("You win.", "Draw.")
        assert game["renderings"][str(len(game["messages"]) - 1)]["rows"][0][0][1] in ("free", "first", "second")
        assert (await act("keep"))["kept"] == (await act("keep"))["kept"] == str(tmp_path / "kept")
        assert "no role 'umpire'" in (await act("again", 400, role="umpire"))["error"]
        await act("again")
        next_state = await wait_for(state, lambda game_state: game_state["prompt"])
        assert not next_state["over"] and next_state["role"] == "opponent"
    [row] = RunRows(Run(tmp_path / "kept"))
    [saved] = Run(tmp_path / "kept").rollouts()
    prompts = [step.prompt[0]["content"] for step in saved.model_roles["opponent"]]
    assert prompts and all(
        step.completion[0]["content"] in prompts[i] for i, step in enumerate(saved.model_roles["opponent"])
    )
    assert row["reward"] == game["scores"]["reward"]
    assert [message["role"] for message in row["completion"]][:2] == ["assistant", "user"]


async def test_a_person_can_play_the_models_role(tmp_path: Path):
    rubric = vf.Rubric([lambda completion, answer: float(completion[-1]["content"] == answer)])
    env = vf.SingleTurnEnv(dataset=[{"question": "2 + 2?", "answer": "4"}], rubric=rubric)
    async with play_games(env, "model", None, tmp_path / "kept") as (state, act):
        game = await wait_for(state, lambda game_state: game_state["prompt"])
        assert (game["prompt"]["legal"], game["messages"][-1]["content"]) == (None, "2 + 2?")
        assert "characters" in (await act("move", 400, number=game["number"], text=""))["error"]
        await act("move", number=game["number"], text="4")
        assert (await wait_for(state, lambda game_state: game_state["over"]))["scores"]["reward"] == 1.0


async def test_the_role_can_be_changed_between_games(tmp_path: Path):
    env, player = tictactoe_and_policy()
    async with play_games(env, "model", player, tmp_path / "kept", ["think", "move"]) as (state, act):
        game = await wait_for(state, lambda game_state: game_state["prompt"])
        assert (game["fields"], game["answer_field"], game["model_roles"]) == (
            ["think", "move"],
            "move",
            ["model", "none"],
        )
        while not game["over"]:  # the rubric scores the person's messages as the model's
            [*_, (free, _)] = [cell for row in game["prompt"]["board"]["rows"] for cell in row if cell[1] == "free"]
            await act("move", number=game["number"], text=f"<think></think><move>{free}</move>")
            game = await wait_for(state, lambda game_state: game_state["over"] or game_state["prompt"])
        assert (game["scores"]["rewards"]["format"], game["scores"]["rewards"]["invalid_move"]) == (1.0, 0.0)
        await act("again", role="none")
        game = await wait_for(state, lambda game_state: game_state["over"] and game_state["role"] == "none")
        assert game["scores"]["metrics"]["lost"] == 0.0  # the optimal policy took the model's role


async def test_a_person_can_watch_and_failures_are_reported(tmp_path: Path):
    def crash(messages: Any, state: Any, rng: Any) -> str:
        raise ValueError("out of ideas")

    env = vf.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], rubric=vf.Rubric([lambda completion: 1.0]))
    async with play_games(env, "none", vf.ScriptedClient(crash), tmp_path / "kept") as (state, _):
        game = await wait_for(state, lambda game_state: game_state["over"])
        assert (game["error"]["message"], game["scores"], game["prompt"]) == ("out of ideas", None, None)


async def test_an_action_that_is_not_possible_is_not_reported_as_a_malformed_body():
    session = PlaySession("quiz", "m", ["none"])
    async with TestClient(TestServer(make_play_app(session, lambda game: "nowhere"))) as client:
        answer = await client.post("/api/move", json={"number": 0, "text": "4"})
        assert answer.status == 400
        assert await answer.json() == {"error": "it is not your turn; reload the current state"}
        headers = {"Content-Type": "application/json"}
        malformed = await client.post("/api/move", data=b"{", headers=headers)
        assert "the body of 'move' is invalid" in await malformed.text()


async def test_only_requests_from_the_games_page_are_allowed():
    session = PlaySession("quiz", "m", ["none"])
    async with TestClient(TestServer(make_play_app(session, lambda game: "nowhere"))) as client:
        json = {"Content-Type": "application/json"}
        assert (await client.post("/api/again", data=b"{}", headers={"Content-Type": "text/plain"})).status == 415
        assert (
            await client.post("/api/again", data=b"{}", headers={**json, "Origin": "https://evil.example"})
        ).status == 403
        assert (await client.post("/api/again", data=b"{}", headers={**json, "Host": "evil.example"})).status == 403
        page = await client.get("/")
        assert (
            'src="/static/play.js"' in await page.text()
            and "script-src 'self'" in page.headers["Content-Security-Policy"]
        )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["move", "again", "keep"]),
    st.one_of(
        st.binary(max_size=30),
        st.builds(
            msgspec.json.encode,
            st.dictionaries(
                st.sampled_from(["number", "text", "role"]), st.one_of(st.integers(), st.text(), st.none())
            ),
        ),
    ),
    st.booleans(),
)
async def test_no_request_causes_a_server_error(name: str, body: bytes, over: bool):
    session = PlaySession("quiz", "m", ["none"])
    session.record = make_record() if over else None
    async with TestClient(TestServer(make_play_app(session, lambda game: "nowhere"))) as client:
        answer = await client.post(f"/api/{name}", data=body, headers={"Content-Type": "application/json"})
        assert answer.status in (200, 400)
        assert (await client.get("/api/game", params={"after": body.decode("latin-1")})).status == 200
