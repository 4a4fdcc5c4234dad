"""A real pretrained model: downloaded once per machine, loaded once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from rove.core.errors import ConfigError
from rove.engine.client import EngineClient
from rove.models.load import LoadedModel, load_model
from rove.models.pretrained import get_model

NAME = "smollm2-135m"


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in the user's cache."""
    gguf = pytest.importorskip("rove.models.gguf", reason="pip install 'rove[train]'")
    try:
        return get_model(NAME, convert=gguf.convert_gguf)
    except ConfigError as error:
        if not str(error).startswith("pip "):
            raise
        pytest.skip(f"{NAME} cannot be downloaded: {error}")


@pytest.fixture(scope="session")
def loaded(folder: Path) -> LoadedModel:
    """Load the model in fp32 on the CPU."""
    return load_model(folder, device="cpu")


@pytest.fixture
def client(loaded: LoadedModel) -> EngineClient:
    """Return a client with its own engine."""
    return EngineClient.from_model(loaded)
