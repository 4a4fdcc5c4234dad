"""Tool calls of published chat templates, which the pinned wheel of TRL contains: detected, read back, and kept over turns.

The wheel is downloaded at test time; without a package index, the tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rove.core.messages import ToolMessage, UserMessage
from rove.models.templates import template_variables
from rove.rendering.renderer import Renderer
from rove.rendering.template_settings import TemplateSettings
from rove.rendering.tool_calls import Call, calls_of

TRL = "trl==1.16.0"
PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "Text."},
        "count": {"type": "integer", "description": "Number."},
        "items": {"type": "array", "items": {}, "description": "List."},
        "nested": {"type": "object", "properties": {}, "description": "Object."},
    },
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": PARAMETERS}}
    for name in ("get-weather", "mail.send", "f")
]
CALLS = {
    "hyphen": [Call("get-weather", {"count": 1})],
    "dot": [Call("mail.send", {"text": "x"})],
    "line break": [Call("f", {"text": "x\ny\n"})],
    "quotes": [Call("f", {"text": 'Oslo\'s "big" <b> day'})],
    "nested": [Call("f", {"nested": {"k": "v", "n": {"m": [1, "it's"]}}, "items": [1.5, 2]})],
    "digits": [Call("f", {"text": "12", "count": 12})],
    "constants": [Call("f", {"items": [True, None], "text": "None"})],
    "none": [Call("f", {})],
    "several": [Call("f", {"count": 1}), Call("get-weather", {"text": "z"})],
}
FORMATS = {
    **dict.fromkeys(["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"], "hermes"),
    **dict.fromkeys(["qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"], "qwen_xml"),
    **dict.fromkeys(["nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"], "qwen_xml"),
    **dict.fromkeys(["lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"], "lfm2"),
    **dict.fromkeys(["llama3_1", "llama3_2"], "llama3"),
    "glm4moe": "glm",
}
REFUSED = {
    **dict.fromkeys(["gemma4", "gemma4_v5", "diffusion_gemma"], "in the format of Gemma 4"),
    "gptoss": "in the format of gpt-oss",
    "muse_glimmer": "in the format of Muse Glimmer",
    **dict.fromkeys(["cohere", "cohere2", "deepseekv3", "deepseek_r1_distill", "gemma3", "phi3"], "ignores tools"),
}
REWRITES = {"qwen3"}
"""Templates that leave the empty reasoning out of the history, so that the next prompt starts a new branch."""


class CharacterTokenizer:
    """One id per character, with a published template."""

    bos_token_id = eos_token_id = None

    def __init__(self, template: str):
        self.chat_template = template

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, tokenize: bool = False, **variables: Any
    ) -> str:
        generation_prompt = variables.pop("add_generation_prompt", False)
        return render_jinja_template(
            [[dict(message) for message in conversation]],
            tools,
            chat_template=self.chat_template,
            add_generation_prompt=generation_prompt,
            bos_token="<s>",
            eos_token="</s>",
            **variables,
        )[0][0]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Any, **_: Any) -> str:
        return "".join(map(chr, token_ids))

    def convert_ids_to_tokens(self, ids: Any, /) -> Any:
        return chr(ids)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trl")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), TRL]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        pytest.skip(f"{TRL} cannot be downloaded: {finished.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder / "trl" / "chat_templates"


def renderer_of(templates: Path, name: str) -> Renderer:
    return Renderer(CharacterTokenizer((templates / f"{name}.jinja").read_text(encoding="utf-8")))


def replied(renderer: Renderer, user: Any, calls: list[Call]) -> tuple[str, str]:
    """Return the prompt, and what the template writes for the calls after it, without the end of the turn."""
    chat_calls = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(calls)
    ]
    prompt = renderer.text([user], TOOLS)
    render = renderer.tokenizer.apply_chat_template
    message = {"role": "assistant", "content": "", "tool_calls": chat_calls}
    whole = render([user, message], tools=TOOLS)
    plain = render([user, {"role": "assistant", "content": "PLAIN"}], tools=TOOLS)
    end = plain.rpartition("PLAIN")[2].strip()
    if not whole.startswith(prompt):  # Nemotron 3 writes <think></think> for no reasoning, and opens it in the prompt
        opened = prompt.removesuffix("<think>\n")
        assert opened != prompt and whole.startswith(opened)
        whole = f"{prompt}thought\n</think>\n{whole[len(opened) :].removeprefix('<think></think>').lstrip()}"
    reply = whole[len(prompt) :]
    return prompt, (reply[: reply.rfind(end)] if end else reply).rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_the_calls_of_a_published_template_are_read_and_kept(templates: Path, name: str):
    renderer = renderer_of(templates, name)
    assert renderer.tool_format is not None and renderer.tool_format.name == FORMATS[name]
    user = UserMessage("hi")
    for kind, calls in CALLS.items():
        if kind == "several" and name.startswith("llama3"):  # its template raises
            continue
        prompt, reply = replied(renderer, user, calls)
        message = renderer.message(reply, TOOLS)
        assert calls_of(message) == calls, (kind, reply)
        turn = [message, *(ToolMessage("done", call["id"]) for call in message.tool_calls)]
        second = renderer.text([user, *turn], TOOLS)
        third = renderer.text([user, *turn, *turn], TOOLS)
        assert (second.startswith(prompt + reply) and third.startswith(second + reply)) == (name not in REWRITES), kind
        assert third.count("done") - renderer.text([user], TOOLS).count("done") == 2 * len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_published_template_that_cannot_be_used_is_refused_by_name(templates: Path, name: str):
    support = renderer_of(templates, name).tool_support
    assert support.format is None and REFUSED[name] in support.problem


VARIABLES = {
    "qwen3": {"enable_thinking"},
    "qwen3_6": {"add_vision_id", "enable_thinking", "preserve_thinking"},
    "gptoss": {"builtin_tools", "model_identity", "reasoning_effort"},
    "llama3_1": {"builtin_tools", "custom_tools", "date_string", "tools_in_user_message"},
    "nemotron_3_nano": {"enable_thinking", "truncate_history_thinking"},
    "qwen2_5": set[str](),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIABLES)
def test_the_variables_of_a_published_template_are_listed(templates: Path, name: str):
    source = (templates / f"{name}.jinja").read_text(encoding="utf-8")
    ours = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
    assert template_variables(source) - ours == VARIABLES[name]


@pytest.mark.slow
@pytest.mark.parametrize("is_on", [False, True])
def test_a_variable_of_the_settings_renders_as_the_template_does(templates: Path, is_on: bool):
    """Qwen3: without thinking, the prompt ends with an empty block, for sampling and for SFT."""
    tokenizer = CharacterTokenizer((templates / "qwen3.jinja").read_text(encoding="utf-8"))
    renderer = Renderer(tokenizer, settings=TemplateSettings(None, {"enable_thinking": is_on}))
    user, answer = UserMessage("hi"), {"role": "assistant", "content": "yes"}
    prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, enable_thinking=is_on)
    assert prompt.endswith("<think>\n\n</think>\n\n") == (not is_on)
    assert tokenizer.decode(renderer.prompt_ids([user])) == prompt
    [(ids, mask)] = renderer.training_branches([user, answer])
    assert tokenizer.decode(ids[: mask.index(True)]) == prompt
    assert tokenizer.decode(ids).startswith(tokenizer.apply_chat_template([user, answer]).rstrip("\n"))
