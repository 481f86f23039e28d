"""How answers to questions are shown."""

from ..classification.presenter import OneOfPresenter


class QuestionPresenter(OneOfPresenter):
    """Shows the likeliest answers."""

    outputs_key = "answers"
