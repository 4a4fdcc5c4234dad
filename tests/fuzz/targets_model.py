"""Targets for files of models: weights, adapters, configurations, chat templates."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
from jinja2 import TemplateError
from transformers.utils import chat_template_utils

from rove.core.digest import adapter_base
from rove.core.errors import Error
from rove.core.plain import UNREADABLE
from rove.core.protocols import SamplingParams
from rove.engine.constraints import grammar_of
from rove.engine.lora import _check_config, read_folder
from rove.models.chat_templates import limit_chat_templates
from rove.models.folder_check import check_folder, read_header, read_object
from rove.models.gguf import convert_gguf
from rove.models.load import load_model, remote_code
from rove.models.templates import read_args, template_variables
from rove.models.weights import file_dtypes, read_files
from rove.rendering.tool_calls import format_of
from tests.fuzz.target import Target, text_of, write
from tests.fuzz.targets_file import FOLDER

limit_chat_templates()


def _empty_folder(name: str) -> Path:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def read_safetensors(data: bytes) -> None:
    """Read a weight file: its header as rove does, then its tensors with the safetensors library."""
    folder = _empty_folder("weights")
    file = write(folder, "model.safetensors", data)
    read_header(file)
    read_files(folder)
    file_dtypes(folder)


MODEL_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def read_model_file(data: bytes) -> None:
    """Read a model folder without weights; the first line of the input is the name of its file."""
    name, _, content = data.partition(b"\n")
    if text_of(name) not in MODEL_FILES:
        return
    folder = _empty_folder("model")
    write(folder, text_of(name), content)
    check_folder(folder)
    with suppress(Error):
        read_object(folder / text_of(name))
    remote_code(folder)
    load_model(folder)


def read_adapter(data: bytes) -> None:
    """Read the configuration of an adapter, and rove's file with the variables of its template."""
    folder = _empty_folder("adapter")
    write(folder, "adapter_config.json", data)
    write(folder, "template_args.json", data)
    with suppress(Error):
        read_args(folder)
    with suppress(Error):
        adapter_base(folder)
    write(folder, "adapter_model.safetensors", EMPTY_SAFETENSORS)
    _check_config(read_folder(folder).config)


EMPTY_SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


def read_gguf(data: bytes) -> None:
    """Convert a GGUF file."""
    convert_gguf(write(FOLDER, "model.gguf", data), _empty_folder("converted"))


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "tool_calls": []},
]


def read_chat_template(data: bytes) -> None:
    """Compile and render a chat template under rove's limits. A template may raise any of Jinja's errors, and Python's own."""
    source = text_of(data)
    format_of(source)
    try:
        template_variables(source)
    except (TemplateError, RecursionError):
        return
    try:
        template = chat_template_utils._compile_jinja_template(source)
        template.render(messages=CONVERSATION, tools=None, add_generation_prompt=True)
    except Exception as error:  # the callers catch every error of a template
        if isinstance(error, MemoryError):
            raise


def read_grammar(data: bytes) -> None:
    """Write the grammar of a requested structured output, which is then compiled in a worker process."""
    try:
        value = msgspec.json.decode(data)
    except UNREADABLE:
        return
    if not isinstance(value, dict):
        return
    grammar_of(SamplingParams(response_format=value))
    grammar_of(SamplingParams(structured_outputs=value))


_MODELS = ("tests/models", "tests/engine")
TARGETS = [
    Target("safetensors", read_safetensors, _MODELS, ('"dtype":"F32"', '"data_offsets":')),
    Target("model_files", read_model_file, _MODELS, tuple(f"{name}\n" for name in MODEL_FILES)),
    Target("adapter", read_adapter, ("tests/engine", "tests/models"), ('"peft_type":"LORA"', '"r":8', '"lora_alpha":')),
    Target("gguf", read_gguf, (), ("GGUF\3\0\0\0", "general.architecture", "llama")),
    Target(
        "chat_template",
        read_chat_template,
        ("tests/models", "tests/rendering"),
        ("{% for m in messages %}", "{{", "}}"),
    ),
    Target(
        "grammar", read_grammar, ("tests/engine", "tests/server"), ('"type":"json_schema"', '"regex":', '"choice":')
    ),
]
