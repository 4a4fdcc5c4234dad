"""Score finished rollouts."""

from rove.rubrics.judge import JudgeRubric, judge_agreement
from rove.rubrics.math import MathRubric
from rove.rubrics.rubric import Rubric, RubricGroup, group_reward

__all__ = ["JudgeRubric", "MathRubric", "Rubric", "RubricGroup", "group_reward", "judge_agreement"]
