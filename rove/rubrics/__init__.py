"""Scoring finished rollouts."""

from rove.rubrics.group import RubricGroup
from rove.rubrics.rubric import Rubric, group_reward

__all__ = ["Rubric", "RubricGroup", "group_reward"]
