"""Checks of an endpoint or of a training run before it starts. Importing this package does not import torch."""

from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding

__all__ = ["FAIL", "OK", "SKIP", "WARN", "Finding"]
