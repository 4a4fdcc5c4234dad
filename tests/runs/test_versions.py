"""What software is here."""

from __future__ import annotations

import sys

import pytest

import rove
from rove.runs import versions
from rove.runs.versions import versions_here


def test_it_is_told_by_name(monkeypatch: pytest.MonkeyPatch):
    found = versions_here()
    assert found["rove"] == rove.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    monkeypatch.setattr(versions, "PACKAGES", ("rove", "nobody-has-this"))
    assert set(versions_here()) == {"python", "platform", "rove"}
