"""Tables of questions, and the scores of people's answers to them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AGREED = 3  # in VQAv2, an answer given by this many people is fully correct


@dataclass(frozen=True)
class QuestionTable:
    """Questions of one split, a row each."""

    root: Path  # of the images' paths
    images: list[str]  # paths below the root
    questions: list[str]
    answers: list[dict[str, float]]  # scores of the answers to each question
    named: list[str]  # answers that count for the choice of outputs, with repeats
    source: Path  # for messages


def agreement(given: Sequence[str]) -> dict[str, float]:
    """Return VQAv2's score of each answer that people gave.

    It is the mean of min(count / 3, 1) over the sets of all people but one: among ten people, an answer that 1, 2, 3
    or more of them gave scores 0.3, 0.6, 0.9 or 1.
    """
    people = len(given)

    def thirds(count: int) -> int:  # summed over the sets
        return count * min(count - 1, AGREED) + (people - count) * min(count, AGREED)

    return {name: thirds(count) / (AGREED * people) for name, count in Counter(given).items()}
