"""A table in the browser: only legal moves at the right time, the right result, and games that can be learned from."""

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
from made import record

import rove as vf
from rove.cli.play_roles import one_game
from rove.core.protocols import Client, SamplingParams
from rove.envs.loading import load_environment
from rove.rollouts.export import RunRows
from rove.runs.run import Run
from rove.viewer.play_session import PlayClient, PlaySession, make_play_app

Asked = Callable[..., Any]


@asynccontextmanager
async def played(
    env: Any, role: str, player: Client | None, folder: Path, fields: Sequence[str] = ()
) -> AsyncIterator[tuple[Asked, Asked]]:
    """Games of `env` at a table: what asks for its state, and what acts."""
    table = PlaySession(env.env_id, "somebody" if player else "", [role, "none"], fields, fields[-1] if fields else "")
    if role == "opponent":
        env.opponent = table.ask

    def keep(game: vf.RolloutRecord) -> str:
        with Run(folder) as run:
            run.start("eval", {"env": env.env_id, "model": "m"}, {})
            run.append_rollout(game)
        return str(folder)

    async def games() -> None:
        for seed in range(10):
            await table.finish(await one_game(env, PlayClient(table, player), "m", SamplingParams(), seed))

    async with TestClient(TestServer(make_play_app(table, keep))) as client:

        async def state(after: int | str = "") -> dict[str, Any]:
            return await (await client.get("/api/game", params={"after": after})).json()

        async def act(name: str, status: int = 200, **body: Any) -> dict[str, Any]:
            answer = await client.post(f"/api/{name}", json=body)
            assert answer.status == status, await answer.text()
            return await answer.json()

        task = asyncio.create_task(games())
        try:
            yield state, act
        finally:
            task.cancel()


def tictactoe() -> tuple[Any, Client]:
    """The game, and a perfect player."""
    env = load_environment("tictactoe", num_examples=5)
    return env, vf.ScriptedClient(env.policies["optimal"])


async def until(state: Asked, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found = await state()
    while not wanted(found):
        found = await state(found["number"])
    return found


async def test_a_whole_game_against_a_player_is_kept_and_can_be_learned_from(tmp_path: Path):
    env, player = tictactoe()
    async with played(env, "opponent", player, tmp_path / "kept") as (state, act):
        found = await until(state, lambda now: now["prompt"])
        assert "is not a legal move" in (await act("move", 400, number=found["number"], text="9"))["error"]
        assert "not your turn" in (await act("move", 400, number=found["number"] + 1, text="0"))["error"]
        assert "has not ended" in (await act("again", 400))["error"]
        assert "has not ended" in (await act("keep", 400))["error"]
        while not found["over"]:
            taken = found["prompt"]["legal"]
            assert taken == [text for row in found["prompt"]["board"]["rows"] for text, look in row if look == "free"]
            assert set(taken) == {word for word in found["prompt"]["view"].split() if word.isdigit()}
            await act("move", number=found["number"], text=taken[0])
            found = await until(state, lambda now: now["over"] or now["prompt"])
        assert found["scores"]["metrics"]["lost"] == 0.0  # the other side is perfect
        assert found["messages"][-1]["content"].split("\n")[0] in ("You win.", "Draw.")
        assert found["renderings"][str(len(found["messages"]) - 1)]["rows"][0][0][1] in ("free", "first", "second")
        assert (await act("keep"))["kept"] == (await act("keep"))["kept"] == str(tmp_path / "kept")
        assert "no role 'umpire'" in (await act("again", 400, role="umpire"))["error"]
        await act("again")
        again = await until(state, lambda now: now["prompt"])
        assert not again["over"] and again["role"] == "opponent"
    [row] = RunRows(Run(tmp_path / "kept"))
    [kept] = Run(tmp_path / "kept").rollouts()
    asked = [step.prompt[0]["content"] for step in kept.model_roles["opponent"]]
    assert asked and all(
        step.completion[0]["content"] in asked[i] for i, step in enumerate(kept.model_roles["opponent"])
    )
    assert row["reward"] == found["scores"]["reward"]
    assert [one["role"] for one in row["completion"]][:2] == ["assistant", "user"]


async def test_a_person_takes_the_models_own_role(tmp_path: Path):
    rubric = vf.Rubric([lambda completion, answer: float(completion[-1]["content"] == answer)])
    env = vf.SingleTurnEnv(dataset=[{"question": "2 + 2?", "answer": "4"}], rubric=rubric)
    async with played(env, "model", None, tmp_path / "kept") as (state, act):
        found = await until(state, lambda now: now["prompt"])
        assert (found["prompt"]["legal"], found["messages"][-1]["content"]) == (None, "2 + 2?")
        assert "characters" in (await act("move", 400, number=found["number"], text=""))["error"]
        await act("move", number=found["number"], text="4")
        assert (await until(state, lambda now: now["over"]))["scores"]["reward"] == 1.0


async def test_a_role_is_changed_between_games(tmp_path: Path):
    env, player = tictactoe()
    async with played(env, "model", player, tmp_path / "kept", ["think", "move"]) as (state, act):
        found = await until(state, lambda now: now["prompt"])
        assert (found["fields"], found["answer_field"], found["model_roles"]) == (
            ["think", "move"],
            "move",
            ["model", "none"],
        )
        while not found["over"]:  # a person in the model's role, whose answers the rubric reads as the model's
            [*_, (free, _)] = [cell for row in found["prompt"]["board"]["rows"] for cell in row if cell[1] == "free"]
            await act("move", number=found["number"], text=f"<think></think><move>{free}</move>")
            found = await until(state, lambda now: now["over"] or now["prompt"])
        assert (found["scores"]["rewards"]["format"], found["scores"]["rewards"]["invalid_move"]) == (1.0, 0.0)
        await act("again", role="none")
        found = await until(state, lambda now: now["over"] and now["role"] == "none")
        assert found["scores"]["metrics"]["lost"] == 0.0  # the perfect player has played alone


async def test_one_can_watch_and_a_failure_is_told(tmp_path: Path):
    def crash(messages: Any, state: Any, rng: Any) -> str:
        raise ValueError("out of ideas")

    env = vf.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], rubric=vf.Rubric([lambda completion: 1.0]))
    async with played(env, "none", vf.ScriptedClient(crash), tmp_path / "kept") as (state, _):
        found = await until(state, lambda now: now["over"])
        assert (found["error"]["message"], found["scores"], found["prompt"]) == ("out of ideas", None, None)


async def test_only_its_own_page_may_act():
    table = PlaySession("quiz", "m", ["none"])
    async with TestClient(TestServer(make_play_app(table, lambda game: "nowhere"))) as client:
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
async def test_nothing_that_is_sent_makes_it_fail(name: str, body: bytes, over: bool):
    table = PlaySession("quiz", "m", ["none"])
    table.record = record() if over else None
    async with TestClient(TestServer(make_play_app(table, lambda game: "nowhere"))) as client:
        answer = await client.post(f"/api/{name}", data=body, headers={"Content-Type": "application/json"})
        assert answer.status in (200, 400)
        assert (await client.get("/api/game", params={"after": body.decode("latin-1")})).status == 200
