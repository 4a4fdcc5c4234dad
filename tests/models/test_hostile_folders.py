"""Every damaged or hostile model folder ends in a ConfigError, within limits of time and memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rove.core.errors import ConfigError
from rove.models.from_scratch import new_model
from rove.models.load import load_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "good"
    new_model(["one two three"], size="tiny").save(folder)
    return folder


def change_json(name: str, *keys: str | int, value: Any) -> Callable[[Path], None]:
    """Return a change of one value in a JSON file."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_bytes()) if (folder / name).exists() else {}
        node = content
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        (folder / name).write_text(json.dumps(content))

    return change


def write_file(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def truncate_to(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def safetensors(header: Any, data: bytes = b"") -> Callable[[Path], None]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return write_file("model.safetensors", struct.pack("<Q", len(text)) + text + data)


def replace_text(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def config(key: str, value: Any) -> Callable[[Path], None]:
    return change_json("config.json", key, value=value)


def index_without_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x.safetensors"}, "metadata": {}}')


NESTED = b'{"a":' * 100_000
HUGE_TENSOR = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}}
HOSTILE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a million layers": ("config.json", config("num_hidden_layers", 1_000_000)),
    "more layers than the weights have": ("config.json", config("num_hidden_layers", 30)),
    "a negative number of layers": ("config.json", config("num_hidden_layers", -1)),
    "layers as text": ("", config("num_hidden_layers", "many")),
    "an endless number of layers": ("config.json", config("num_hidden_layers", float("inf"))),
    "a huge vocabulary": ("config.json", config("vocab_size", 10**12)),
    "a larger vocabulary": ("config.json", config("vocab_size", 500_000)),
    "a huge hidden size": ("config.json", config("hidden_size", 10**9)),
    "a larger hidden size": ("config.json", config("hidden_size", 4096)),
    "a huge intermediate size": ("config.json", config("intermediate_size", 10**9)),
    "a larger intermediate size": ("config.json", config("intermediate_size", 50_000)),
    "no attention heads": ("", config("num_attention_heads", 0)),
    "a huge head": ("config.json", config("head_dim", 10**7)),
    "heads as a list": ("", config("num_attention_heads", [1])),
    "an unknown activation": ("", config("hidden_act", "explode")),
    "an unknown model type": ("", config("model_type", "no-such-model")),
    "a model type that is a number": ("", config("model_type", 3)),
    "rope scaling of a wrong type": ("", config("rope_parameters", {"rope_type": "none-such", "rope_theta": "x"})),
    "a dtype that does not exist": ("", config("eos_token_id", {"a": 1})),
    "an empty config": ("config.json", write_file("config.json", b"")),
    "a config that is a list": ("config.json", write_file("config.json", b"[1]")),
    "a config that is not UTF-8": ("config.json", write_file("config.json", b"\xff\xfe{")),
    "a config of nested objects": ("config.json", write_file("config.json", NESTED)),
    "a config of nested lists": ("config.json", config("x", json.loads("[" * 500 + "]" * 500))),
    "a config of 100 MB": ("config.json", truncate_to("config.json", 100_000_000)),
    "a config that is a folder": ("config.json", replace_text("config.json", Path.mkdir)),
    "a config that is a pipe": ("config.json", replace_text("config.json", lambda file: os.mkfifo(file))),
    "a JSON file that is a pipe": ("other.json", replace_text("other.json", lambda file: os.mkfifo(file))),
    "empty weights": ("model.safetensors", write_file("model.safetensors", b"")),
    "weights with a huge header": (
        "model.safetensors",
        write_file("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
    ),
    "weights with a broken header": ("model.safetensors", safetensors(b"{broken")),
    "weights with a list as header": ("model.safetensors", safetensors(b"[1, 2]")),
    "weights with a nested header": ("model.safetensors", safetensors(NESTED)),
    "a tensor larger than its data": ("model.safetensors", safetensors(HUGE_TENSOR, b"12345678")),
    "a tensor beyond the file": (
        "model.safetensors",
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
    ),
    "a tensor of a negative size": (
        "model.safetensors",
        safetensors({"a": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}}, b"12345678"),
    ),
    "a tensor without a shape": ("model.safetensors", safetensors({"a": {"dtype": "F32", "data_offsets": [0, 0]}})),
    "no tensors": ("config.json", safetensors({})),
    "a few tensors": (
        "config.json",
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
    ),
    "cut weights": ("model.safetensors", truncate_to("model.safetensors", 5000)),
    "longer weights": ("model.safetensors", truncate_to("model.safetensors", 50_000_000)),
    "an index without files": ("", index_without_files),
    "an empty tokenizer": ("tokenizer.json", write_file("tokenizer.json", b"")),
    "a tokenizer that is no tokenizer": ("", write_file("tokenizer.json", b"{}")),
    "a tokenizer of nested objects": ("tokenizer.json", write_file("tokenizer.json", NESTED)),
    "a tokenizer of 300 MB": ("tokenizer.json", truncate_to("tokenizer.json", 300_000_000)),
    "a token with a huge id": ("tokenizer.json", change_json("tokenizer.json", "added_tokens", 0, "id", value=1 << 60)),
    "a token with a negative id": ("tokenizer.json", change_json("tokenizer.json", "added_tokens", 0, "id", value=-1)),
    "a vocabulary of a wrong type": ("", change_json("tokenizer.json", "model", "vocab", value=[3])),
    "an unknown tokenizer model": ("", change_json("tokenizer.json", "model", "type", value="Explode")),
    "a tokenizer config that is a list": ("tokenizer_config.json", write_file("tokenizer_config.json", b"[]")),
    "a chat template of 100 MB": ("chat_template.jinja", lambda folder: sparse_new(folder / "chat_template.jinja")),
}


def sparse_new(file: Path) -> None:
    file.touch()
    os.truncate(file, 100_000_000)


@pytest.mark.parametrize(("named", "change"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_folder_is_an_error_that_names_the_file(
    named: str, change: Callable[[Path], None], model_folder: Path, tmp_path: Path
):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    change(folder)
    with pytest.raises(ConfigError) as error:
        load_model(folder, "cpu")
    assert str(folder / named) in str(error.value)


def test_json_files_that_transformers_does_not_read_may_hold_anything(model_folder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "modules.json").write_text("[1, 2]")
    (folder / "training.log.json").write_bytes(b'{"step": 1}\n{"step": 2}\n')
    sparse_new(folder / "trainer_state.json")
    assert load_model(folder, "cpu").context > 0


def test_the_unchanged_folder_is_loaded(model_folder: Path):
    assert load_model(model_folder, "cpu").context > 0
