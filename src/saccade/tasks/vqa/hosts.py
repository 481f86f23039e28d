"""Models of Hugging Face that read a question and an image."""

from ..text.hosts import TextHosts


class QuestionHosts(TextHosts):
    """Builds models such as ViLT."""

    host_kind = "VISUAL_QUESTION_ANSWERING"
