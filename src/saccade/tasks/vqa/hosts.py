"""Hugging Face models for visual question answering."""

from ..text.hosts import TextHosts


class QuestionHosts(TextHosts):
    """Builds models such as ViLT."""

    host_kind = "VISUAL_QUESTION_ANSWERING"
