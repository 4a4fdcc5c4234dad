"""Audit of environments: look for rewards that can be earned without doing the task. Importing this package does not
load torch."""

from rove.audit.card import Card, card_markdown, make_card
from rove.audit.findings import CHECKS, Report

__all__ = ["CHECKS", "Card", "Report", "card_markdown", "make_card"]
