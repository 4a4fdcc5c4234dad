"""Recorded software versions."""

from __future__ import annotations

import sys

import pytest

import rove
from rove.runs import run
from rove.runs.run import versions_here


def test_versions_are_listed_by_name(monkeypatch: pytest.MonkeyPatch):
    versions = versions_here()
    assert versions["rove"] == rove.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    monkeypatch.setattr(run, "PACKAGES", ("rove", "nobody-has-this"))
    assert set(versions_here()) == {"python", "platform", "rove"}
