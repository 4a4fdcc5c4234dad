"""Audit of environments: look for rewards that can be earned without doing the task. Importing this package does not
load torch."""

from rove.audit.findings import CHECKS, Report

__all__ = ["CHECKS", "Report"]
