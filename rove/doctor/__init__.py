"""Checks before anything is spent: an endpoint, or the settings of a training run. Imports no torch by itself."""

from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding

__all__ = ["FAIL", "OK", "SKIP", "WARN", "Finding"]
