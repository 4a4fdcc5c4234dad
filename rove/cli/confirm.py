"""Asking before something is done that was not the command's own purpose."""

from __future__ import annotations

import sys

import click

from rove.core.errors import ConfigError

FLAG = "--yes"
"""Of every command: what it would ask is answered with yes."""


class _Answers:
    all_yes = False


def answer_all(yes: bool) -> None:
    """Whether everything is answered with yes, from now on."""
    _Answers.all_yes = yes


def confirmed(question: str, otherwise: str) -> bool:
    """What whoever sits at the terminal answers; yes with --yes.

    Args:
        otherwise: what to do where there is nobody to ask.

    Raises:
        ConfigError: nobody is there.
    """
    if _Answers.all_yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{question} There is no terminal to ask at: {otherwise}")
    return click.confirm(question, err=True)
