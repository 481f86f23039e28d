"""Presenter of visual question answering."""

from ..classification.presenter import OneOfPresenter


class QuestionPresenter(OneOfPresenter):
    """Presents the most probable answers."""

    outputs_key = "answers"
