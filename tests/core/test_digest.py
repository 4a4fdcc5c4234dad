"""Digests: the same content has the same name, wherever it lies."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rove.core.digest import derive_seed, digest_files, digest_model


def test_files_count_by_name_and_content_not_by_place(tmp_path: Path):
    names = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for name in ("x.py", "y.py"):
            (tmp_path / place / name).write_text(name)
        names.append(digest_files((tmp_path / place).glob("*.py")))
    assert names[0] == names[1] == digest_files(sorted((tmp_path / "a").glob("*.py"), reverse=True))
    (tmp_path / "b" / "x.py").write_text("X.py")
    assert digest_files((tmp_path / "b").glob("*.py")) != names[0]


def test_a_long_file_counts_by_its_size_and_its_ends(tmp_path: Path):
    file = tmp_path / "weights"
    seen = set()
    for content in (b"a" * (3 << 20), b"a" * (3 << 20) + b"a", b"b" + b"a" * ((3 << 20) - 1)):
        file.write_bytes(content)
        seen.add(digest_files([file]))
    assert len(seen) == 3


def test_a_model_is_its_name_or_its_weights(tmp_path: Path):
    assert digest_model("gpt-5-mini") == "gpt-5-mini"
    (tmp_path / "model.safetensors").write_bytes(b"1")
    before = digest_model(tmp_path)
    (tmp_path / "README.md").write_text("words about it")
    assert digest_model(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert digest_model(tmp_path) != before


@given(st.integers(), st.text())
def test_seeds_fit_where_seeds_go(number: int, text: str):
    seed = derive_seed(number, text)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(number, text) != derive_seed(number, text, 0)


def test_seeds_are_the_same_on_every_machine():
    assert derive_seed(7, "key", 0) == derive_seed(7, "key", 0) == SEED


SEED = 4707757915530186919
