"""Visual question answering."""

from .task import AnswerQuestions

__all__ = ["AnswerQuestions"]
