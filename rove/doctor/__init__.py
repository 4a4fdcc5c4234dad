"""Checks of an endpoint or of a training run before it starts. Importing this package does not import torch."""

from rove.core.findings import Finding, Severity

__all__ = ["Finding", "Severity"]
