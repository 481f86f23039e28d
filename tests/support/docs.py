"""What the documents tell to type: commands, examples and names of code, each with its page and line."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "src" / "saccade" / "recipes").glob("*.yaml"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("saccade", "torchrun", "python", "pip", "make", "curl", "nvidia-cuda-mps-control")
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.S | re.M)


@dataclass(frozen=True)
class Item:
    """A piece of a page: a command, a block of code or a span."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, *kinds: str) -> list[Item]:
    """Return a page's fenced blocks of these kinds."""
    found = []
    for match in FENCE.finditer(read(path)):
        if match[2] in kinds:
            line = read(path)[: match.start(3)].count("\n") + 1
            found.append(Item(path.name, line, textwrap.dedent(match[3])))
    return found


def spans(path: Path) -> list[Item]:
    """Return a page's spans of code outside of its blocks, in one line each."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), read(path))
    return [
        Item(path.name, text[: match.start()].count("\n") + 1, " ".join(match[1].split()))
        for match in re.finditer(r"(?<!`)`([^`]+?)`(?!`)", text)
    ]


def commands(path: Path) -> list[Item]:
    """Return what a page or a recipe's header tells to type, in order."""
    if path.suffix == ".yaml":
        return list(_header_commands(path))
    typed = [one for block in blocks(path, "console", "sh") for one in _of_block(block)]
    inline = [one for one in spans(path) if _is_command(one.text)]
    return sorted([*typed, *inline], key=lambda one: one.line)


def _of_block(block: Item) -> Iterator[Item]:
    for number, line in enumerate(block.text.splitlines()):
        for part in re.split(r"\s{2,}(?=saccade )|&&", re.sub(r"\s+#\s.*", "", line)):
            if part.strip():
                yield Item(block.page, block.line + number, part.strip())


def _is_command(text: str) -> bool:
    """Whether a span can be typed: a verb's name alone, as in `saccade data check`, is none, and `...` leaves out."""
    program, _, rest = text.partition(" ")
    if program == "saccade":
        return bool(re.search(r"^(models|data \w+ \S|(?!data )\w+ \S)", rest)) and " ... " not in text
    return program in PROGRAMS and bool(rest)


def _header_commands(path: Path) -> Iterator[Item]:
    """Yield the commands under `command:` in a recipe's header, without remarks in brackets."""
    inside = False
    for number, line in enumerate(read(path).splitlines(), 1):
        key = re.match(r"# (\w*): +(.*)", line)
        inside = key[1] == "command" if key else inside and line.startswith("#  ")
        if inside:
            yield Item(path.name, number, re.sub(r" \([^()]*\)$", "", key[2] if key else line[1:].strip()))
