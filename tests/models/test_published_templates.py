"""Tool calls of published chat templates: detected, read back, kept over turns, and trained with an exact mask.

The pinned packages of TRL and llama-cpp-python contain the templates. They are downloaded at test time; without a package index,
the tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
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
LLAMA_CPP = "llama-cpp-python==0.3.36"
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
    **dict.fromkeys(["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"], "gemma4"),
    "glm4moe": "glm",
}
"""Format of each template of TRL that rove reads."""
REFUSED = {
    "gptoss": "in the format of gpt-oss",
    "muse_glimmer": "in the format of Muse Glimmer",
    **dict.fromkeys(["cohere", "cohere2", "deepseekv3", "deepseek_r1_distill", "gemma3", "phi3"], "ignores tools"),
}
DIFFERENCES = {
    "qwen3": "it leaves the empty reasoning out of the history, so that each turn starts a new sequence",
    "diffusion_gemma": "its prompt opens an empty block that the history does not have, so that each turn starts a new sequence",
}
"""Templates that rewrite the history, so that no engine can extend a sequence over turns."""
TRAINED_AS_SAMPLED = "nemotron"
"""Templates whose prompt opens the reasoning with a line break, and whose history has `<think></think>` without one. A message
without reasoning is trained as a model would sample it after the prompt."""
LLAMA_CPP_FORMATS = {
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_named",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen_xml",
    "NVIDIA-Nemotron-Nano-v2": "nemotron2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen_xml",
    "Qwen3.5-4B": "qwen_xml",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen_xml",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v32",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_named",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral_named",
}
"""Format of each template of llama.cpp that rove reads."""
LLAMA_CPP_REFUSED = {
    "Apertus-8B-Instruct": "in the format of Apertus",
    "CohereForAI-c4ai-command-r-plus-tool_use": "in the format of Command R",
    "GigaChat3-10B-A1.8B": "in the format of GigaChat",
    "GigaChat3.1-10B-A1.8B": "in the format of GigaChat",
    "HuggingFaceTB-SmolLM3-3B": "ignores tools",
    "Kimi-K2-Instruct": "rejects a message with a tool call: SecurityError",
    "Kimi-K2-Thinking": "rejects a message with a tool call: SecurityError",
    "Kimi-K3": "in the format of Kimi K3",
    "MiniMax-M3": "in the format of MiniMax M3",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "ignores tools",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "ignores tools",
    "deepseek-ai-DeepSeek-V3.1": "ignores tools",
    "fireworks-ai-llama-3-firefunction-v2": "rejects tools",
    "google-gemma-2-2b-it": "ignores tools",
    "llama-cpp-deepseek-r1": "rejects tools",
    "llama-cpp-rwkv-world": "ignores tools",
    "meetkai-functionary-medium-v3.1": "in the format of Functionary",
    "meetkai-functionary-medium-v3.2": "rejects a message with a tool call",
    "microsoft-Phi-3.5-mini-instruct": "ignores tools",
    "muse-glimmer": "in the format of Muse Glimmer",
    "openai-gpt-oss-120b": "in the format of gpt-oss",
    "openbmb-MiniCPM5-1B": "in the format of MiniCPM",
    "tencent-Hy3": "in the format of Hunyuan",
    "upstage-Solar-Open-100B": "in the format of Solar",
}
ENDS = {
    "gemma4": ["<turn|>", "<|tool_response>"],
    "llama3": ["<|eot_id|>"],
    "glm": ["<|user|>", "<|observation|>"],
}
"""Texts of the tokens that end a turn, by the first letters of a template's name; `<|im_end|>` for the others."""


class CharacterTokenizer:
    """One id per character, and one for each end of a turn, with a published template."""

    bos_token_id = eos_token_id = None

    def __init__(self, template: str, ends: Sequence[str] = ()):
        self.chat_template = template
        self.end_ids = {end: sys.maxunicode + 1 + index for index, end in enumerate(ends)}

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
        pieces = re.split(f"({'|'.join(map(re.escape, self.end_ids))})", text) if self.end_ids else [text]
        ids: list[int] = []
        for piece in pieces:
            ids += [self.end_ids[piece]] if piece in self.end_ids else map(ord, piece)
        return ids

    def decode(self, token_ids: Any, **_: Any) -> str:
        end_of = {id: end for end, id in self.end_ids.items()}
        return "".join(end_of.get(id) or chr(id) for id in token_ids)

    def convert_ids_to_tokens(self, ids: Any, /) -> Any:
        return self.decode([ids])


def download(folder: Path, package: str, *options: str) -> Path:
    """Download a package without its requirements; skip the test if that fails."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *options, package]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=400)
    files = list(folder.iterdir())
    if finished.returncode != 0 or not files:
        pytest.skip(f"{package} cannot be downloaded: {finished.stderr.strip()[-200:]}")
    return files[0]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trl")
    with zipfile.ZipFile(download(folder, TRL)) as wheel:
        wheel.extractall(folder)
    return folder / "trl" / "chat_templates"


@pytest.fixture(scope="module")
def llama_cpp_templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama_cpp")
    sources = download(folder, LLAMA_CPP, "--no-binary", ":all:")
    with tarfile.open(sources) as archive:
        for member in archive:
            if member.name.endswith(".jinja") and "/models/templates/" in member.name:
                source = archive.extractfile(member)
                assert source is not None
                (folder / Path(member.name).name).write_bytes(source.read())
    return folder


def renderer_of(templates: Path, name: str) -> Renderer:
    ends = next((ends for prefix, ends in ENDS.items() if name.startswith(prefix)), ["<|im_end|>"])
    tokenizer = CharacterTokenizer((templates / f"{name}.jinja").read_text(encoding="utf-8"), ends)
    return Renderer(tokenizer, list(tokenizer.end_ids.values()))


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
    return prompt, (reply[: reply.rfind(end)] if end and end in reply else reply).rstrip("\n")


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
        assert (second.startswith(prompt + reply) and third.startswith(second + reply)) == (name not in DIFFERENCES), (
            kind
        )
        assert third.count("done") - renderer.text([user], TOOLS).count("done") == 2 * len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_the_mask_covers_what_a_model_samples_and_the_end_of_its_turn(templates: Path, name: str):
    renderer = renderer_of(templates, name)
    assert isinstance(renderer.tokenizer, CharacterTokenizer)
    ends = list(renderer.tokenizer.end_ids)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"count": 7}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "RESULT"}
    messages = [UserMessage("QUESTION"), calling, result, {"role": "assistant", "content": "ANSWER"}]
    messages += [UserMessage("AGAIN"), {"role": "assistant", "content": "LAST"}]
    branches = renderer.training_branches(messages, TOOLS)
    replies: list[str] = []
    for ids, mask in branches:
        runs = "".join("x" if is_trained else " " for is_trained in mask)
        for run in re.finditer("x+", runs):
            replies.append(renderer.decode(ids[run.start() : run.end()]))
    assert len(replies) == 3
    for reply, content in zip(replies, ("f", "ANSWER", "LAST"), strict=True):
        assert content in reply and reply.endswith(tuple(ends)), reply
        assert sum(map(reply.count, ends)) == 1
        assert not re.search("QUESTION|RESULT|AGAIN", reply)
    assert calls_of(renderer.read(renderer.encode(replies[0]), TOOLS)) == [Call("f", {"count": 7})]
    # The last sequence is the conversation as the template writes it, up to the end of the last turn.
    whole = renderer.text(messages, TOOLS, generation_prompt=False)
    trained_text = renderer.decode(branches[-1][0])
    if name not in DIFFERENCES and not name.startswith(TRAINED_AS_SAMPLED):
        assert whole.startswith(trained_text) or trained_text.removesuffix("<|user|>") == whole


@pytest.mark.slow
def test_the_templates_of_llama_cpp_are_read_or_refused_by_name(llama_cpp_templates: Path):
    names = {path.stem for path in llama_cpp_templates.glob("*.jinja")}
    assert names == LLAMA_CPP_FORMATS.keys() | LLAMA_CPP_REFUSED.keys()
    for name in sorted(names):
        support = renderer_of(llama_cpp_templates, name).tool_support
        format_name = support.format.name if support.format is not None else None
        assert format_name == LLAMA_CPP_FORMATS.get(name), (name, support)
        assert LLAMA_CPP_REFUSED.get(name, "") in support.problem, (name, support)


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
