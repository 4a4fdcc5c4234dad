"""What is no GGUF file is refused; a real one is converted in tests of the pretrained model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rove.core.errors import ConfigError
from rove.models.gguf import convert_gguf


@pytest.mark.parametrize(
    ("content", "message"), [(b"PK", "is not a GGUF file: it starts with b'PK'"), (b"GGUF", "transformers cannot read")]
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, message: str):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
