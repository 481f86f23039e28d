"""Questions about images."""

from .task import AnswerQuestions

__all__ = ["AnswerQuestions"]
