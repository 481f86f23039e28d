"""Tables of questions, and the scores of people's answers to them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...support.wording import count_of

PEOPLE = 10  # who answer each question in VQAv2
AGREED = 3  # in VQAv2, an answer given by this many people is fully correct


@dataclass(frozen=True)
class QuestionTable:
    """Questions of one split, a row each."""

    root: Path  # of the images' paths
    images: list[str]  # paths below the root
    questions: list[str]
    answers: list[dict[str, float]]  # scores of the answers to each question
    named: list[str]  # answers that count for the choice of outputs, with repeats
    people: list[int]  # who answered each question; 0 where answers have scores
    source: Path  # for messages


def agreement(given: Sequence[str]) -> dict[str, float]:
    """Return VQAv2's score of each answer that people gave.

    It is the mean of min(count / 3, 1) over the sets of all people but one: among ten people, an answer that 1, 2, 3
    or more of them gave scores 0.3, 0.6, 0.9 or 1. The answer of one person alone, whom nobody could agree with,
    scores 1.
    """
    people = len(given)
    if people == 1:
        return {given[0]: 1.0}

    def thirds(count: int) -> int:  # summed over the sets
        return count * min(count - 1, AGREED) + (people - count) * min(count, AGREED)

    return {name: thirds(count) / (AGREED * people) for name, count in Counter(given).items()}


def note_few(people: Sequence[int]) -> list[str]:
    """Return a note on questions with several people's answers, but fewer than VQAv2 has.

    Args:
        people: who answered each question.
    """
    few = [count for count in people if 1 < count < PEOPLE]
    if not few:
        return []
    least, rows = min(few), count_of(len(few), "row")
    worth, one = agreement(["yes"] * least)["yes"], agreement(["yes"] + ["no"] * (least - 1))["yes"]
    return [
        f"{rows} with answers of fewer than {PEOPLE} people, {least} at least: VQAv2's score, made for {PEOPLE}, is "
        f"{worth:.2f} where {least} of {least} people agree and {one:.2f} for one of them; give scores instead, such "
        "as yes=1|maybe=0.3, for other worths"
    ]
