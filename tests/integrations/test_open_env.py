"""Test OpenEnv servers as environments and rove environments as OpenEnv servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from libraries import requires_library
from toy_envs import Quiz, Talk, scripted_client

import rove as vf
from rove.core.errors import WorkerError
from rove.integrations.environments.open_env import OpenEnvEnv, RefusedError, Session, _Server, show_fields
from rove.integrations.open_env_server import Episode, OpenEnvServer, RestEpisodes, SessionLimit, _parse_frame
from rove.server.listen import base_url_of, listening
from rove.server.proxy import Access
from tests.envs.test_agent import open_sdk, send
from tests.envs.test_tool import call, calls

openenv = requires_library("openenv", "openenv")


class Guessing:
    """A server with OpenEnv's protocol: guess a number; the right guess has reward 1 and ends the episode."""

    def __init__(self, capacity: int = 1000, schema: dict[str, Any] | None = None):
        self.capacity, self.schema = capacity, schema
        self.live = self.peak = 0
        self.resets: list[dict[str, Any]] = []
        self.secrets: dict[Any, str] = {}

    def app(self) -> web.Application:
        app = web.Application()
        fields = self.schema or {"properties": {"guess": {"type": "string"}, "metadata": {}}, "required": ["guess"]}
        app.router.add_get("/schema", json_handler({"action": fields}))
        app.router.add_get("/metadata", json_handler({"name": "guessing", "description": "Guess a number."}))
        app.router.add_get("/ws", self.session)
        return app

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        if self.live >= self.capacity:
            await ws.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            await ws.close()
            return ws
        self.live += 1
        self.peak = max(self.peak, self.live)
        try:
            async for message in ws:
                frame = json.loads(message.data)
                if frame["type"] == "close":
                    break
                await self.answer(ws, frame["type"], frame["data"])
        finally:
            self.live -= 1
        return ws

    async def answer(self, ws: web.WebSocketResponse, kind: str, data: dict[str, Any]) -> None:
        if kind == "reset":
            self.resets.append(data)
            self.secrets[ws] = str(data["seed"] % 10)
            await observe(ws, {"hint": "0 to 9", "metadata": {"secret": 1}}, None, False)
        elif data.get("guess") == "leave":
            await ws.close()
        elif data.get("guess") == "break":
            await ws.send_json({"type": "error", "data": {"message": "boom", "code": "EXECUTION_ERROR"}})
        elif not str(data.get("guess", "")).isdigit():
            errors = [{"loc": ["guess"], "msg": "not a digit"}]
            error = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
            await ws.send_json({"type": "error", "data": error})
        else:
            is_right = str(data["guess"]) == self.secrets[ws]
            await observe(ws, {"hint": "right" if is_right else "no"}, is_right, is_right)


def json_handler(value: Any) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(value)

    return answer


async def observe(ws: web.WebSocketResponse, observation: dict[str, Any], reward: Any, done: bool) -> None:
    await ws.send_json({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    async with listening(app) as runner:
        yield base_url_of(runner).removesuffix("/v1")


def sample(app: web.Application, policy: Any, rollouts: int = 1, **options: Any) -> list[vf.RolloutRecord]:
    async def main() -> list[vf.RolloutRecord]:
        async with serving(app) as url:
            env = OpenEnvEnv(url, **{"num_eval_examples": 4, "max_turns": 12, **options})
            return await env.generate(
                policy if isinstance(policy, vf.Client) else scripted_client(policy), rollouts_per_example=rollouts
            )

    return asyncio.run(main())


def count_up(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    return f"<think>next</think> {len(state['trajectory'])}"


def test_an_open_env_server_is_an_environment() -> None:
    server = Guessing()
    records = sample(server.app(), count_up, rollouts=2)
    seeds = [data["seed"] for data in server.resets]
    assert len(seeds) == 8 and len(set(seeds)) == 4  # group members share a seed
    for record in records:
        assert record.scores is not None, record.error
        assert record.prompt == [vf.UserMessage("Guess a number.\n\n0 to 9")]
        assert record.completion[-1]["content"] == "right\nThe episode is over."
        assert (record.reward, record.scores.metrics["finished"]) == (1.0, 1.0)
        assert record.scores.metrics["episode_steps"] == len(record.steps) == record.info["seed"] % 10 + 1
    assert server.live == 0


@pytest.mark.broad
def test_128_concurrent_sessions_are_served() -> None:
    server, all_connected = Guessing(), asyncio.Event()

    async def wait_for_all(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        if server.live == 128:
            all_connected.set()
        await all_connected.wait()
        return count_up(messages, state, rng)

    client = vf.ScriptedClient(wait_for_all, max_concurrent=128)
    records = sample(server.app(), client, num_eval_examples=128)
    assert server.peak == 128 and [record.reward for record in records] == [1.0] * 128


def test_sessions_wait_for_a_server_without_capacity() -> None:
    server = Guessing(capacity=2)
    records = sample(server.app(), count_up, num_eval_examples=10)
    assert server.peak == 2 and [record.reward for record in records] == [1.0] * 10


def test_a_server_that_never_has_capacity_is_an_infra_error() -> None:
    [record] = sample(Guessing(capacity=0).app(), count_up, num_eval_examples=1, capacity_seconds=0.2)
    assert record.error is not None
    assert record.error.type == "InfraError" and "no capacity for another session within 0.2 s" in record.error.message


def test_actions_with_several_fields_are_json() -> None:
    schema = {"properties": {"guess": {"type": "integer"}, "why": {"type": "string"}}, "required": ["guess"]}
    responses = iter(["hm", '["4"]', 'so {"guess": "four"}', *(f'```json\n{{"guess": {i}}}\n```' for i in range(10))])
    [record] = sample(
        Guessing(schema=schema).app(), lambda messages, state, rng: next(responses), num_eval_examples=1, max_turns=20
    )
    assert record.scores is not None
    texts = [message["content"] for message in record.completion[1:7:2]]
    assert all(text.startswith("This is not a valid action: ") for text in texts)
    assert all('"guess": {"type": "integer"}' in text for text in texts)
    assert "not a digit" in texts[2] and '"required": ["guess"]' in record.prompt[0]["content"]
    assert record.reward == 1.0 and record.scores.metrics["invalid_actions"] == 3 / len(record.steps)


def test_an_action_can_be_a_tool_call() -> None:
    guess = {"type": "integer", "description": "0 to 9"}
    schema = {"properties": {"guess": guess, "metadata": {}}, "required": ["guess"], "description": "A guess."}
    responses: Any = iter(
        ["four", calls(call("gues", {"guess": 1})), calls(call("act", "{")), calls(call("act", {"guess": "four"}))]
    )

    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        all_guesses = [call("act", {"guess": number}, id=f"c{number}") for number in range(10)]
        return next(responses, None) or calls(*all_guesses)

    [record] = sample(Guessing(schema=schema).app(), policy, num_eval_examples=1, as_tool=True)
    assert record.tools is not None and record.scores is not None
    [tool] = [definition["function"] for definition in record.tools]
    assert (tool["name"], tool["description"]) == ("act", "A guess.")
    assert tool["parameters"] == {"type": "object", "properties": {"guess": guess}, "required": ["guess"]}
    assert record.prompt[0]["content"].startswith("Guess a number.\n\nCall the tool act to take an action.")
    replies = [message["content"] for message in record.completion if message["role"] != "assistant"]
    assert replies[0] == "Your message does not contain a tool call. Call the tool act to take an action."
    assert "there is no tool 'gues'" in replies[1] and "not JSON" in replies[2] and "not a digit" in replies[3]
    secret = record.info["seed"] % 10
    assert replies[4:] == [*["no"] * secret, "right\nThe episode is over.", *["The episode is over."] * (9 - secret)]
    assert record.reward == 1.0 and record.scores.metrics["invalid_actions"] == 4 / 5
    assert (record.stop_condition, record.completion[-1]["tool_call_id"]) == ("has_final_env_response", "c9")
    with pytest.raises(vf.ConfigError, match="pass only one of them"):
        OpenEnvEnv("http://x", as_tool=True, action_parser=json.loads)


def test_a_custom_prompt_renderer_and_action_parser_are_used() -> None:
    options = {
        "prompt_renderer": lambda observation: f"<{observation['hint']}>",
        "action_parser": lambda text: {"guess": text[-1]},
    }
    [record] = sample(Guessing().app(), "I say 3", num_eval_examples=1, max_turns=1, instructions="Go.", **options)
    assert record.prompt[0]["content"] == "Go.\n\n<0 to 9>" and record.completion[-1]["content"][0] == "<"


@pytest.mark.parametrize(
    ("guess", "message"), [("leave", "closed the session"), ("break", r"refused the action \(EXECUTION_ERROR\): boom")]
)
def test_server_errors_fail_the_rollout(guess: str, message: str) -> None:
    [record] = sample(Guessing().app(), guess, num_eval_examples=1)
    assert record.error is not None and re.search(message, record.error.message)
    assert record.error.phase == "env_response"


@pytest.mark.broad
def test_a_server_that_does_not_respond_fails_the_rollout() -> None:
    class Silent(Guessing):
        async def answer(self, ws: web.WebSocketResponse, kind: str, data: dict[str, Any]) -> None:
            await asyncio.sleep(60)

    [record] = sample(Silent().app(), "1", num_eval_examples=1, call_seconds=0.3)
    assert record.error is not None and "did not answer 'reset' within 0.3 s" in record.error.message


NOT_OPEN_ENV = ("[]", '{"data": [1]}', '{"data": {"observation": "x"}}', '{"data": {"reward": "1"}}', 9_000 * "[")


@pytest.mark.parametrize("message", NOT_OPEN_ENV, ids=range(len(NOT_OPEN_ENV)))
def test_a_server_with_other_messages_fails_the_rollout(message: str) -> None:
    class OtherMessages(Guessing):
        async def answer(self, ws: web.WebSocketResponse, kind: str, data: dict[str, Any]) -> None:
            await ws.send_str(message)

    [record] = sample(OtherMessages().app(), "1", num_eval_examples=1)
    assert record.error is not None and record.error.type == "InfraError"


def test_a_refusal_without_a_message_is_quoted() -> None:
    class OtherMessages(Guessing):
        async def answer(self, ws: web.WebSocketResponse, kind: str, data: dict[str, Any]) -> None:
            await ws.send_str('{"type": "error", "data": {"code": "FULL"}}')

    [record] = sample(OtherMessages().app(), "1", num_eval_examples=1)
    assert record.error is not None and "refused 'reset' without a message: {" in record.error.message


def test_an_action_that_is_nested_too_deeply_is_invalid() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    server = _Server(None, "", schema)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a JSON object"):
        server.action(f"```json\n{9_000 * '['}\n```")


@pytest.mark.parametrize("text", ["[]", "3", '{"type": 3}', '{"type": "step", "data": [1]}', "{", 9_000 * "["])
def test_a_message_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        _parse_frame(text)


def test_a_missing_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    [record] = OpenEnvEnv(f"http://127.0.0.1:{port}/", num_eval_examples=1).generate_sync(scripted_client("1"))
    assert record.error is not None
    assert record.error.type == "InfraError" and f"http://127.0.0.1:{port}" in record.error.message
    [record] = sample(web.Application(), "1", num_eval_examples=1)
    assert record.error is not None and "cannot reach an OpenEnv server" in record.error.message
    with pytest.raises(vf.ConfigError, match="call_seconds is 0"):
        OpenEnvEnv("http://x", call_seconds=0)


def test_observations_are_shown_as_text() -> None:
    assert show_fields({"board": "X", "metadata": {}}) == "X"
    assert show_fields({"a": [1], "b": None, "c": "é"}) == "a: [1]\nc: é"
    assert show_fields({"text": "hello", "messages": [{"role": "user"}]}) == "hello"


async def with_sessions(
    env: vf.Environment, use: Callable[[Callable[[], Session]], Awaitable[Any]], **options: Any
) -> Any:
    async with serving(OpenEnvServer(env, "ours", **options).app()) as url, aiohttp.ClientSession() as http:
        return await use(lambda: Session(http, url))


def test_a_served_game_matches_the_local_environment() -> None:
    """The texts and the final reward are the same through the server and without it."""
    env = vf.load_environment("tictactoe", num_examples=8)

    async def use_server(connect: Callable[[], Session]) -> list[Any]:
        session, results = connect(), []
        results.append(await session.reset(9, 9, split="eval", index=3, seed=5))
        for square in (0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0):
            results.append(await session.step({"message": f"<move>{square}</move>"}, 9))
            if results[-1]["done"]:
                break
        results.append(await session.request("state", {}, 9))
        with pytest.raises(RefusedError, match="the episode has ended"):
            await session.step({"message": "more"}, 9)
        await session.close()
        return results

    *results, state = asyncio.run(with_sessions(env, use_server))
    moves = iter(range(9))
    [*_, record] = [
        record
        for record in env.generate_sync(
            scripted_client(lambda m, s, r: f"<move>{next(moves)}</move>" if s["example_id"] == 3 else ""), seed=5
        )
        if record.example_id == 3
    ]
    expected_texts = [message["content"] for message in record.completion if message["role"] == "user"]
    assert [result["observation"]["text"] for result in results[1:]] == expected_texts
    assert results[0]["observation"]["messages"] == record.prompt and results[-1]["done"]
    assert [result["reward"] for result in results] == [0.0] * (len(results) - 1) + [record.reward]
    assert record.scores is not None and results[-1]["metadata"]["metrics"] == record.scores.metrics
    assert (state["step_count"], state["example_id"], state["split"]) == (len(record.steps), 3, "eval")


def test_invalid_messages_are_refused_with_a_code() -> None:
    async def use_server(connect: Callable[[], Session]) -> list[tuple[str, str]]:
        session, refused = connect(), []
        with pytest.raises(RefusedError, match="index is 99; expected 0 to 2"):
            await session.reset(9, 9, index=99)
        requests = [
            ("step", {"message": "early"}),
            ("dance", {}),
            ("reset", {"split": "middle"}),
            ("reset", {"seed": 1}),
        ]
        requests += [("step", {"text": "wrong field"}), ("step", {"message": 3}), ("step", {"message": "right field"})]
        for kind, data in requests:
            try:
                await session.request(kind, data, 9)
            except RefusedError as error:
                refused.append((kind, error.code))
        return refused

    expected = [("step", "EXECUTION_ERROR"), ("dance", "UNKNOWN_TYPE"), ("reset", "VALIDATION_ERROR")]
    assert asyncio.run(with_sessions(Quiz(), use_server)) == [
        *expected,
        ("step", "VALIDATION_ERROR"),
        ("step", "VALIDATION_ERROR"),
    ]


@pytest.mark.broad
def test_sessions_are_limited_and_released() -> None:
    env = Talk(turns=3)

    async def use_server(connect: Callable[[], Session]) -> None:
        first, second = connect(), connect()
        await first.reset(9, 9)
        with pytest.raises(vf.InfraError, match="no capacity"):
            await second.reset(9, 0.1)
        await first.reset(9, 9)  # restarts in the middle of an episode
        await first.close()
        await second.reset(9, 9)
        await second.step({"message": "a"}, 9)
        await second.close()

    asyncio.run(with_sessions(env, use_server, max_sessions=1))


def test_a_failed_rollout_has_an_error_and_no_reward() -> None:
    class Broken(Talk):
        async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
            raise RuntimeError("no more words")

    async def use_server(connect: Callable[[], Session]) -> dict[str, Any]:
        session = connect()
        await session.reset(9, 9)
        return await session.step({"message": "a"}, 9)

    result = asyncio.run(with_sessions(Broken(), use_server))
    assert (result["done"], result["reward"]) == (True, None)
    assert result["metadata"]["error"] == {"phase": "env_response", "type": "RuntimeError", "message": "no more words"}


def test_a_session_survives_a_slow_step_of_a_client_that_sends_pings() -> None:
    class Slow(Talk):
        async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
            await asyncio.sleep(0.6)
            return "go on"

    async def use_server() -> str:
        async with (
            serving(OpenEnvServer(Slow(), "slow").app()) as url,
            aiohttp.ClientSession() as http,
            # The client closes the connection 0.1 s after a ping without an answer.
            http.ws_connect(f"{url}/ws", heartbeat=0.2) as socket,
        ):
            for frame in ({"type": "reset"}, {"type": "step", "data": {"message": "a"}}):
                await socket.send_json(frame)
                reply = await socket.receive_json(timeout=9)
            return reply["data"]["observation"]["text"]

    assert asyncio.run(use_server()) == "go on"


def test_a_step_after_a_refused_reset_is_refused() -> None:
    async def use_server(connect: Callable[[], Session]) -> dict[str, Any]:
        session = connect()
        await session.reset(9, 9)
        with pytest.raises(RefusedError, match="index is 99"):
            await session.reset(9, 9, index=99)
        with pytest.raises(RefusedError, match="there is no episode; send reset first"):
            await session.step({"message": "a"}, 9)
        return await session.reset(9, 9)

    assert asyncio.run(with_sessions(Talk(), use_server))["done"] is False


async def texts_of_episode(env: vf.Environment, replies: int) -> list[str]:
    episode = Episode(env, env.get_dataset(1)[0], 0, "train", "one")
    results = [await episode.observe()]
    for _ in range(replies):
        results.append(await episode.act({"message": " reply"}))
    await episode.close()
    return [result["observation"]["text"] for result in results]


async def test_observations_in_completion_mode_are_the_new_text() -> None:
    class Story(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
            return f" part {len(state['trajectory'])}"

    env = Story(dataset=[{"prompt": "Once"}], message_type="completion", max_turns=3)
    assert await texts_of_episode(env, 3) == ["Once", " part 1", " part 2", " part 3"]


async def test_observations_of_another_conversation_are_complete() -> None:
    async def two_conversations(access: Access, state: vf.State) -> str:
        async with open_sdk(access) as sdk:
            await send(sdk, [{"role": "user", "content": "first"}])
            return await send(sdk, [{"role": "user", "content": "second"}])

    class MessageEditingEnv(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
            messages[0]["content"] = "changed"
            return "go on"

    data = [{"question": "q"}]
    assert await texts_of_episode(vf.AgentEnv(two_conversations, dataset=data), 1) == ["first", "second"]
    assert await texts_of_episode(MessageEditingEnv(dataset=data, max_turns=3), 1) == ["q", "changed\n\ngo on"]


def test_rows_beyond_the_first_1000_are_served_if_their_number_is_known() -> None:
    counted, endless = Quiz(count=1005), Quiz(dataset=({"question": str(i), "answer": ""} for i in itertools.count()))
    assert len(OpenEnvServer(counted, "quiz")._rows_of("train")) == 1005
    assert len(OpenEnvServer(endless, "quiz")._rows_of("train")) == 1000


def test_episodes_without_seed_and_index_differ() -> None:
    async def use_server(connect: Callable[[], Session]) -> list[str]:
        session = connect()
        unnamed = [await session.reset(9, 9) for _ in range(5)]
        named = [await session.reset(9, 9, seed=3) for _ in range(2)]
        return [result["observation"]["text"] for result in (*unnamed, *named)]

    *unnamed, first, second = asyncio.run(with_sessions(Quiz(count=500), use_server))
    assert len(set(unnamed)) > 1 and first == second


async def call_rest(server: OpenEnvServer, use: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> Any:
    """Serve and call `use` with a function (path, body) → (status, response); without a body the method is GET."""
    async with serving(server.app()) as url, aiohttp.ClientSession() as http:

        async def send(path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
            method = "POST" if body is not None or options else "GET"
            async with http.request(method, f"{url}/{path}", json=body, **options) as response:
                return response.status, await response.json()

        return await use(send)


def test_episodes_over_rest_match_those_over_a_websocket() -> None:
    env = vf.load_environment("tictactoe", num_examples=8)

    async def episode_over_rest(send: Any) -> list[Any]:
        first_state = await send("state")
        results = [(await send("reset", {"split": "eval", "index": 3, "seed": 5, "episode_id": "one"}))[1]]
        _, reset_reply = await send("reset", {"split": "eval", "index": 3, "seed": 5})
        name = reset_reply["metadata"]["episode_id"]
        for square in range(9):
            move = {"message": f"<move>{square}</move>"}
            results.append((await send("step", {"action": move, "episode_id": "one", "timeout_s": 9}))[1])
            assert (await send("step", {"action": move}))[1]["observation"] == results[-1][
                "observation"
            ]  # the latest episode
            if results[-1]["done"]:
                break
        missing = await send("step", {"action": move, "episode_id": "one"})
        assert missing[0] == 404 and "no episode 'one' is active" in missing[1]["detail"]
        assert first_state == (200, {"episode_id": None, "step_count": 0}) and len(name) == 32
        assert {result["metadata"]["episode_id"] for result in results} == {"one"}
        return results

    async def episode_over_socket(connect: Callable[[], Session]) -> list[Any]:
        session = connect()
        results = [await session.reset(9, 9, split="eval", index=3, seed=5)]
        while not results[-1]["done"]:
            results.append(await session.step({"message": f"<move>{len(results) - 1}</move>"}, 9))
        await session.close()
        return results

    rest_results = asyncio.run(call_rest(OpenEnvServer(env, "ours"), episode_over_rest))
    socket_results = asyncio.run(with_sessions(env, episode_over_socket))
    for rest_result, socket_result in zip(rest_results, socket_results, strict=True):
        assert rest_result["observation"] == socket_result["observation"]
        assert (rest_result["reward"], rest_result["done"]) == (socket_result["reward"], socket_result["done"])
        assert rest_result["metadata"].items() >= socket_result.get("metadata", {}).items()


def test_invalid_rest_requests_are_refused_with_a_status() -> None:
    server = OpenEnvServer(Talk(turns=3), "talk", max_sessions=1)

    async def use_server(send: Any) -> None:
        assert (await send("step", {"action": {"message": "a"}}))[0] == 404
        assert (await send("reset", data=b"{", headers={"Content-Type": "application/json"}))[0] == 422
        assert (await send("reset", [1]))[0] == 422
        status, result = await send("reset", {"index": 99999})
        assert status == 422 and "expected 0 to" in result["detail"] and server.limit.active == 0
        assert (await send("reset", data=b""))[0] == 200
        status, result = await send("reset", {})
        assert status == 503 and (result["code"], result["detail"]) == ("CAPACITY_REACHED", "all 1 sessions are in use")
        for body in ({}, {"action": {"text": "x"}}, {"action": {"message": 3}}):
            assert (await send("step", body))[0] == 422
        assert (await send("state"))[1]["step_count"] == 0
        server.rest.idle_seconds = -1.0  # idle episodes release their session
        assert (await send("reset", {"episode_id": "new"}))[0] == 200
        assert (await send("state?episode_id=new"))[1]["episode_id"] == "new"
        assert (await send("state?episode_id=old"))[0] == 404

    asyncio.run(call_rest(server, use_server))
    assert server.limit.active == 0


def test_tasks_are_listed_without_their_answers() -> None:
    async def use_server() -> list[Any]:
        async with serving(OpenEnvServer(Quiz(count=5), "quiz").app()) as url, aiohttp.ClientSession() as http:

            async def post(path: str, **body: Any) -> Any:
                async with http.post(f"{url}/{path}", json=body) as response:
                    return await response.json() if response.status == 200 else response.status

            async with http.get(f"{url}/quiz/splits") as response:
                splits = await response.json()
            single = await post("quiz/task", split="eval", index=2)
            task_range = await post("quiz/task_range", split="train", start=1, stop=3)
            refused = [await post("quiz/task", split="eval", index=5), await post("other/tasks", split="eval")]
            refused += [await post("quiz/tasks", split="middle"), await post("quiz/task", split="eval", index="last")]
            return [splits, await post("quiz/num_tasks", split="train"), single, task_range, refused]

    splits, count, single, task_range, refused = asyncio.run(use_server())
    assert splits == [{"name": "train", "type": "train"}, {"name": "eval", "type": "validation"}]
    assert count == {"num_tasks": 5} and [task["index"] for task in task_range["tasks"]] == [1, 2]
    assert single == {"task": {"index": 2, "prompt": [{"role": "user", "content": "q2"}]}}
    assert refused == [400, 404, 400, 400]


def test_group_rewards_are_refused() -> None:
    @vf.group_reward
    def rank(states: list[vf.State]) -> list[float]:
        return [1.0] * len(states)

    with pytest.raises(vf.ConfigError, match="has group rewards"):
        OpenEnvServer(Quiz(rubric=vf.Rubric([rank])), "quiz")


def test_the_rove_client_works_with_the_rove_server() -> None:
    env = vf.load_environment("reverse_text", num_examples=6)
    records = sample(
        OpenEnvServer(env, "reverse_text").app(),
        "a",
        num_eval_examples=5,
        reset_args={"split": "eval"},
        instructions="",
    )
    assert all(record.scores is not None and record.scores.metrics["finished"] == 1.0 for record in records)


# Tests with the openenv package


SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
import uvicorn
from models import GuessAction, GuessObservation
from openenv.core.env_server.http_server import create_app
from server.guess_environment import GuessEnvironment
app = create_app(GuessEnvironment, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=int(sys.argv[3]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""
CLIENT = """
import asyncio, re, sys
from openenv.core import GenericEnvClient

async def play(seed):
    async with GenericEnvClient(base_url=sys.argv[1]) as env:
        told = await env.reset(seed=seed)
        while not told.done:
            free = re.findall(r"\\d", told.observation["text"].split("Invalid move.")[-1])
            told = await env.step({"message": f"<think>x</think><move>{free[0]}</move>"})
        return told.reward, (await env.state())["step_count"]

async def main():
    return await asyncio.gather(*(play(seed) for seed in range(128)))

print(asyncio.run(main()))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        return server_socket.getsockname()[1]


@pytest.fixture(params=[1, 128])
def scaffold(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Start the server that `openenv init` writes, with this number of concurrent sessions, and yield its URL."""
    init = [sys.executable, "-m", "openenv.cli", "init", "guess", "--output-dir", str(tmp_path)]
    subprocess.run(init, check=True, capture_output=True)
    port = free_port()
    program = [sys.executable, "-c", SERVER, str(tmp_path / "guess"), str(port), str(request.param)]
    with subprocess.Popen(program) as process:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield url
        process.terminate()


@openenv
@pytest.mark.slow
def test_the_scaffold_server_works_and_matches_the_rest_api(scaffold: str, request: pytest.FixtureRequest) -> None:
    capacity = request.node.callspec.params["scaffold"]
    env = OpenEnvEnv(scaffold, num_eval_examples=128 if capacity > 1 else 6, max_turns=3)
    records = env.generate_sync(vf.ScriptedClient(lambda m, s, r: "abcd", max_concurrent=128))
    assert [record.error for record in records] == [None] * len(records)
    assert {round(record.reward or 0.0, 6) for record in records} == {1.2}
    assert records[0].completion[-1]["content"] == "echoed_message: abcd\nmessage_length: 4"

    async def call_rove(send: Any) -> list[tuple[int, Any]]:
        return [
            await send("reset", {}),
            await send("step", {"action": {"message": "a"}}),
            await send("step", {"action": {}}),
        ]

    async def call_scaffold() -> list[tuple[int, Any]]:
        responses = []
        async with aiohttp.ClientSession() as http:
            for path, body in (("reset", {}), ("step", {"action": {"message": "a"}}), ("step", {"action": {}})):
                async with http.post(f"{scaffold}/{path}", json=body) as response:
                    responses.append((response.status, await response.json()))
        return responses

    for response, expected in zip(
        asyncio.run(call_rest(OpenEnvServer(Talk(), "t"), call_rove)), asyncio.run(call_scaffold())
    ):
        assert response[0] == expected[0] and expected[1].keys() <= response[1].keys()


@openenv
@pytest.mark.slow
def test_the_official_client_works_with_the_rove_server() -> None:
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(Path(vf.__file__).parents[1])}
    serve = [sys.executable, "-m", "rove.cli.main", "serve", "--openenv", "tictactoe", "--port", str(port)]
    with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert f"serving tictactoe at http://127.0.0.1:{port}" in server.stdout.readline()
        client = [sys.executable, "-c", CLIENT, f"http://127.0.0.1:{port}"]
        completed = subprocess.run(client, capture_output=True, text=True, check=False)
        server.terminate()
    assert completed.returncode == 0, completed.stderr
    games = json.loads(completed.stdout.replace("(", "[").replace(")", "]"))
    assert len(games) == 128 and all(0 <= reward <= 1.2 and 1 <= turns <= 8 for reward, turns in games)


async def test_a_new_episode_survives_a_step_of_the_old_one() -> None:
    class Episode:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {}
            self.is_over = asyncio.Event()

        async def observe(self) -> dict[str, Any]:
            return {"done": False}

        async def act(self, action: Any) -> dict[str, Any]:
            await self.is_over.wait()
            raise WorkerError("the episode has ended")

        async def close(self) -> None:
            self.is_over.set()

    episodes = RestEpisodes(lambda data: Episode(), SessionLimit(5))  # pyright: ignore[reportArgumentType]
    await episodes.reset({"episode_id": "one"})
    step = asyncio.create_task(episodes.step({"episode_id": "one", "action": {}}))
    await asyncio.sleep(0)
    await episodes.reset({"episode_id": "one"})
    with pytest.raises(WorkerError, match="has ended"):
        await step
    assert await episodes.state({"episode_id": "one"}) == {}
