"""Answers made equal as VQAv2's official evaluation does, and ViLT's code for its outputs."""

import re
from functools import lru_cache

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(NUMBERS)}
ARTICLES = ("a", "an", "the")
MARKS = ';/[]"{}()=+\\_-><@`,?!'
CONTRACTED = (
    "ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd "
    "he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've "
    "needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've "
    "somebody'll somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll "
    "that's there'd there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've "
    "weren't what'll what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll "
    "why're why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've"
)
# Each is found by its spelling with one apostrophe left out.
CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in CONTRACTED.split()
    for place, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}  # as the evaluation has it


@lru_cache(maxsize=2**18)  # the millions of answers repeat
def normalise(answer: str) -> str:
    """Return an answer as the official evaluation compares it.

    A mark that touches a space anywhere in the answer is left out, and so are all of an answer with a comma inside of a
    number; other marks become spaces. Apostrophes, colons, and periods before a digit stay. Then come lower case,
    digits for the words of numbers, no articles, and apostrophes in contractions.
    """
    text = found = re.sub(r"[\n\t]", " ", answer).strip()
    numeral = re.search(r"\d,\d", text) is not None
    for mark in MARKS:
        left_out = numeral or f"{mark} " in text or f" {mark}" in text
        found = found.replace(mark, "" if left_out else " ")
    words = [DIGITS.get(word, word) for word in re.sub(r"\.(?!\d)", "", found).lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)
