"""The rollout loop of 0.1.0 to 0.1.7. These releases keep a rollout's messages in `state["completion"]`.

Packages override its methods, whose arguments differ from those of later releases:

    is_completed(messages, state), env_response(messages, state) -> (messages, state)
    rollout(client, model, prompt, …) -> (completion, state)
    get_model_response(client, model, prompt, …), init_state(prompt, completion, answer, …)
    get_context_messages(state), init_completion()

An environment runs in this loop if its package is written for one of these releases, or overrides one of these methods. The
responses in `state["responses"]` are the steps of `state["trajectory"]`, from which rove's records and metrics are made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from packaging.version import Version

from rove.compat.source_reader import takes_messages
from rove.compat.verifiers.clients import response_id
from rove.compat.verifiers.decorators import call_user, named_args
from rove.compat.verifiers.legacy import ends_by_itself, unpack_env_response
from rove.compat.verifiers.messages import concat_messages, normalize_messages
from rove.compat.verifiers.release import fixed, outdated
from rove.compat.verifiers.types import INPUT_FIELDS, Response, ResponseMessage, State, wire_tool
from rove.core.errors import LimitReachedError

TRAJECTORIES = Version("0.1.8")
"""First release in which rollouts are lists of turns, in `state["trajectory"]`."""
_STATE_ARGUMENT = Version("0.1.6")
"""First release in which `rollout` receives the completion and the state as arguments."""
_OVERLONG_PROMPT = "overlong-prompt"
"""Id of the response that stands for a prompt that is too long."""
_STOP_METHODS = ("max_turns_reached", "prompt_too_long")
"""Stop conditions of 0.1.6 and 0.1.7 that needed no decorator."""


def parameter_names(func: Callable[..., Any]) -> list[str]:
    """Return the names of a method's parameters, except `self`, `*args` and `**kwargs` under any name."""
    parameters = list(inspect.signature(func).parameters.values())[1:]
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind not in collecting]


def uses_legacy_loop(env: Any, base: type) -> bool:
    """Return whether an environment's rollouts run in the loop of 0.1.0 to 0.1.7."""
    cls = type(env)
    has_legacy_method = False
    for name in sorted(_SIGNATURES):
        method = getattr(cls, name)
        # Releases from 0.1.8 on have methods of the same names, so only the parameters show which loop calls them.
        if method is not getattr(base, name) and _SIGNATURES[name](parameter_names(method)):
            outdated(f"{cls.__name__}.{name}", _REPLACEMENTS[name])
            has_legacy_method = True
    return has_legacy_method or env.written_for < TRAJECTORIES


_SIGNATURES: dict[str, Callable[[list[str]], bool]] = {
    "is_completed": takes_messages,
    "rollout": lambda names: "prompt" in names,
    "get_model_response": lambda names: "state" not in names and "prompt" in names,
    "init_state": lambda names: "completion" in names,
    "get_context_messages": lambda names: True,
    "init_completion": lambda names: True,
}
"""Method → function that tells from the names of its parameters whether its signature is that of 0.1.0 to 0.1.7."""
_REPLACEMENTS = {
    "is_completed": "mark a method (self, state) -> bool with @vf.stop",
    "rollout": "override setup_state, env_response or get_prompt_messages, or add a @vf.cleanup",
    "get_model_response": "take (state, prompt, …)",
    "init_state": "override setup_state",
    "get_context_messages": "override get_prompt_messages",
    "init_completion": "put the messages into the prompt",
}


class ModelRequest(NamedTuple):
    """Arguments of `get_model_response`, in any of its signatures."""

    state: Any
    prompt: Any
    client: Any
    model: str | None
    tools: Any
    """None: those of the state."""
    sampling_args: Any
    """None: those of the state."""
    is_legacy: bool


_REQUEST = ("state", "prompt", "client", "model", "tool_defs", "sampling_args", "message_type")
_LEGACY_REQUEST = ("client", "model", "prompt", "oai_tools", "sampling_args", "message_type")


def model_request(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModelRequest:
    """Return the arguments of a call `get_model_response(state, prompt, …)` or, before 0.1.8, `(client, model, prompt, …)`."""
    is_legacy = "state" not in kwargs and not (args and isinstance(args[0], Mapping))
    names = _LEGACY_REQUEST if is_legacy else _REQUEST
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    tools = values.get("tool_defs")
    if tools is None:
        tools = values.get("oai_tools")
    state, sampling_args = values.get("state"), values.get("sampling_args")
    # The old signature has no state and no defaults: without tools, the request has none.
    if is_legacy:
        rollout = _current.get()
        state = None if rollout is None else rollout.state
        tools = tools or []
        sampling_args = sampling_args or {}
    return ModelRequest(
        state, values.get("prompt"), values.get("client"), values.get("model"), tools, sampling_args, is_legacy
    )


class LegacyRollout:
    """A rollout in the loop of 0.1.0 to 0.1.7.

    Args:
        state: the first state. Packages may replace it with a new dict; the dict's values are then copied into the
            state.
    """

    def __init__(self, env: Any, state: State):
        self.env = env
        self.state = state
        self.has_started = False
        self._calls: dict[Any, tuple[Any, Response]] = {}
        """Responses with their prompts, by the response's identity and by its id, which copies have as well."""
        self._recorded = 0
        """Number of items of `state["responses"]` that are steps of the trajectory."""

    async def run(self) -> State:
        """Run the environment's own `rollout`. Errors are stored in `state["error"]`."""
        token = _current.set(self)
        try:
            await self._run()
        # A limit of the run ends the rollout by rove's rules; it is no error of the package.
        except LimitReachedError:
            raise
        except Exception as error:
            self.state["error"] = error
        finally:
            _current.reset(token)
        await self._record_steps()
        if self.state.get("error") is not None:
            self.env._mark_completed(self.state, "has_error")
        elif not self.state.get("is_completed"):
            self.env._mark_completed(self.state, self.state.get("stop_condition") or "is_completed")
        return self.state

    async def _run(self) -> None:
        env, state = self.env, self.state
        await _prepare_state(env, state)
        values = {name: state[name] for name in ("prompt", "completion", "answer", "task", "info", "example_id")}
        if "completion" in parameter_names(type(env).init_state):
            self.adopt(await call_user(env.init_state, **values))
        arguments = {"client": state["client"], "model": state["model"], "state": state}
        arguments |= {**values, "sampling_args": state["sampling_args"]}
        completion, returned = await _call_rollout(env, arguments)
        self.adopt(returned)
        self.state["completion"] = env.as_written(normalize_messages(completion, field_name="completion"))

    def adopt(self, returned: Any) -> None:
        """Use the state that a method of the package returned: another State, or a dict with the state's values."""
        if isinstance(returned, State):
            self.state = returned
        elif isinstance(returned, Mapping):
            self.state.update(returned)

    async def run_turns(self) -> tuple[Any, State]:
        """Run the turns as `rollout` did, and return the completion and the state."""
        env = self.env
        self.has_started = True
        self.adopt(await call_user(env.setup_state, self.state))
        # As in the old loop, `is_completed` is called twice per turn; an override may change the state each time.
        while not await self._is_completed():
            messages = await call_user(env.get_context_messages, self.state)
            response = await self._request(messages)
            if response.id == _OVERLONG_PROMPT:
                self.state.update(prompt_too_long=True, is_truncated=True, stop_condition="prompt_too_long")
                break
            await self._add_response(response)
            if await self._is_completed() or self._is_at_limit():
                break
            await self._add_env_response()
        # A fault that is kept by default: the environment does not see the last turn (docs/compat.md).
        if fixed() and self.state.get("stop_condition") == "max_turns_reached":
            await self._add_env_response()
        return self.state["completion"], self.state

    async def _is_completed(self) -> bool:
        messages = await call_user(self.env.get_context_messages, self.state)
        arguments: tuple[Any, ...] = (self.state,)
        if takes_messages(parameter_names(type(self.env).is_completed)):
            arguments = (messages, self.state)
        return bool(await call_user(self.env.is_completed, *arguments))

    def _is_at_limit(self) -> bool:
        """Return whether the loop itself ends the rollout, as it did until 0.1.2; later, only `is_completed` did."""
        if ends_by_itself(self.env) or not 0 < self.env.max_turns <= self.state["turn"]:
            return False
        self.state["stop_condition"] = "max_turns_reached"
        return True

    async def _request(self, messages: Any) -> Response:
        env, state = self.env, self.state
        if "state" in parameter_names(type(env).get_model_response):
            return await call_user(env.get_model_response, state, messages)
        options = {
            "oai_tools": [wire_tool(tool) for tool in state.get("tool_defs") or ()] or None,
            "sampling_args": state["sampling_args"],
            "message_type": env.message_type,
        }
        options = named_args(env.get_model_response, options)
        return await call_user(env.get_model_response, state["client"], state["model"], messages, **options)

    async def _add_response(self, response: Response) -> None:
        state = self.state
        state["responses"].append(response)
        state["turn"] += 1
        message = {"role": "assistant", "content": response.choices[0].message.content or ""}
        if response.choices[0].message.tool_calls:
            message["tool_calls"] = response.choices[0].message.tool_calls
        added = self.env.as_written(normalize_messages([message]))
        state["completion"] = concat_messages([state["completion"], added])
        await self._record_steps()

    async def _add_env_response(self) -> None:
        messages = await call_user(self.env.get_context_messages, self.state)
        reply = unpack_env_response(await call_user(self.env.env_response, messages, self.state), self.adopt)
        added = self.env.as_written(normalize_messages(reply, field_name="env_response"))
        self.state["completion"] = concat_messages([self.state["completion"], added])

    def remember_call(self, prompt: Any, response: Response) -> None:
        """Remember a response of the model, which becomes a step once it is in `state["responses"]`."""
        self._calls[id(response)] = (prompt, response)
        if response_id(response) is not None:
            self._calls[response_id(response)] = (prompt, response)

    async def _record_steps(self) -> None:
        """Append the new items of `state["responses"]` to the trajectory."""
        responses = self.state.get("responses") or []
        for response in responses[self._recorded :]:
            # By identity first, because a package's own client may give all responses the same id. A package may also store
            # other responses, such as those of a second model.
            call = self._calls.get(id(response)) or self._calls.get(response_id(response))
            if call is not None:
                await self.env.add_model_response(self.state, *call)
        self._recorded = len(responses)

    async def reset_if_started(self) -> None:
        """Begin with a new state if this rollout has already run turns, as each call of `rollout` before 0.1.6 did."""
        if not self.has_started:
            return
        former = self.state
        row = {**former["input"], **{name: former[name] for name in INPUT_FIELDS}}
        state = await self.env.new_state(row, former["client"], former["model"], former["sampling_args"])
        await _prepare_state(self.env, state)
        self.state = state
        self._recorded = 0


_current: ContextVar[LegacyRollout | None] = ContextVar("legacy_rollout", default=None)
"""The rollout to which the running code belongs, because `get_model_response` did not receive the rollout's state."""


async def _prepare_state(env: Any, state: State) -> None:
    """Give a new state the form and the keys that it had until 0.1.7."""
    _move_input_fields(state)
    completion = env.as_written(await call_user(env.init_completion))
    state.update(completion=completion, responses=[], turn=0)


def current_rollout() -> LegacyRollout | None:
    """Return the rollout, in the loop of 0.1.0 to 0.1.7, to which the running code belongs."""
    return _current.get()


def overlong_prompt() -> Response:
    """Return the response that stood for a prompt that is too long."""
    return Response(id=_OVERLONG_PROMPT, message=ResponseMessage(content="", finish_reason="length"))


def add_undecorated_stops(env: Any) -> None:
    """Add the conditions of 0.1.6 and 0.1.7 that a package overrides without a decorator to the stop conditions."""
    names = {condition.__name__ for condition in env._stop_conditions}
    env._stop_conditions += [getattr(env, name) for name in _STOP_METHODS if name not in names]


async def inherited_rollout(env: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, State]:
    """Run a rollout for a call `rollout(client, model, prompt, …)`, which the package's own `rollout` usually makes."""
    values = _rollout_arguments(args, kwargs)
    rollout = _current.get()
    if rollout is None or rollout.env is not env:
        row = {name: values[name] for name in INPUT_FIELDS if values.get(name) is not None}
        state = await env.new_state(row, values["client"], values["model"], values.get("sampling_args"))
        rollout = LegacyRollout(env, state)
        await _prepare_state(env, state)
        token = _current.set(rollout)
        try:
            return await rollout.run_turns()
        finally:
            _current.reset(token)
    if values.get("state"):
        rollout.adopt(values["state"])
    else:
        await rollout.reset_if_started()
        names = ("prompt", "answer", "task", "info", "sampling_args")
        rollout.state.update({name: values[name] for name in names if values.get(name) is not None})
    return await rollout.run_turns()


def is_row_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a method is called with a dataset row, as from 0.1.8 on."""
    return "input" in kwargs or bool(args and isinstance(args[0], Mapping))


_ROLLOUT = ("client", "model", "prompt", "answer", "task", "info", "sampling_args")
_ROLLOUT_016 = (
    *("client", "model", "prompt", "completion", "answer", "state"),
    *("task", "info", "example_id", "sampling_args"),
)


def _rollout_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `rollout` by name; the fourth is the answer until 0.1.5, and the completion after that."""
    has_answer_fourth = len(args) > 3 and isinstance(args[3], str)
    names = _ROLLOUT if has_answer_fourth else _ROLLOUT_016
    return {**dict(zip(names, args, strict=False)), **kwargs}


async def _call_rollout(env: Any, arguments: Mapping[str, Any]) -> Any:
    """Call the environment's `rollout` with the arguments that it takes."""
    parameters = inspect.signature(env.rollout).parameters.values()
    # An override with `*args` passes them on, usually to `super().rollout`, and does not show which arguments it takes.
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        takes_state = env.written_for >= _STATE_ARGUMENT or "state" in {parameter.name for parameter in parameters}
        names = _ROLLOUT_016 if takes_state else _ROLLOUT
        return await call_user(env.rollout, *(arguments[name] for name in names))
    return await call_user(env.rollout, **named_args(env.rollout, arguments))


def _move_input_fields(state: State) -> None:
    """Move prompt, answer, info and example_id from the state's input to the state itself, where they were until 0.1.7."""
    row = state["input"]
    values = {name: row.pop(name) for name in INPUT_FIELDS if name in row}
    # Until 0.1.7 the state was a plain dict: code that iterates over it or copies it must find them there.
    dict.update(state, {"answer": "", "info": {}, "example_id": 0, **values})
