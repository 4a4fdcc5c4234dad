"""Audit of environments: look for rewards that can be earned without doing the task. Importing this package loads no torch."""

from rove.audit.findings import CHECKS, Report
from rove.core.findings import Finding, Severity

__all__ = ["CHECKS", "Finding", "Report", "Severity"]
