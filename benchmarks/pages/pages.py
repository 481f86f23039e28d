"""Compare what two versions of saccade wrote, as text: pages, tables and numbers, without times and versions.

    PYTHONPATH=OTHER/src python benchmarks/pages/screenshots.py PETS make WORK && mv WORK BEFORE
    python benchmarks/pages/screenshots.py PETS make WORK && python benchmarks/pages/pages.py BEFORE WORK

Both are made in the same place, since pages show paths. Images and weights are compared by their bytes. What a clock
decides is left out: seconds, speeds, their charts, searches within a time. Files that tell of costs may differ in
numbers, which is told apart from other words. The exit status is 1 if anything else differs.
"""

import argparse
import csv
import difflib
import hashlib
import re
import sys
from pathlib import Path

TEXTS, BYTES = (".html", ".md", ".csv", ".json", ".jsonl", ".yaml", ".txt"), (".png", ".safetensors")
UNITS = "ms|s|min|minutes?|seconds?|hours?|h|KiB|MiB|GiB"
WITHIN = "(?:(?!</figure>).)"
TIMED = (
    (r"data:image/\w+;base64,[\w+/=]+", lambda found: hashlib.sha256(found[0].encode()).hexdigest()),
    (rf"<figure{WITHIN}*?(?:a second|seconds of training|seconds a step){WITHIN}*</figure>", "<figure>~</figure>"),
    (r'<section aria-labelledby="costs">.*?</section>', "<section>~</section>"),
    (r"<dt>[^<]*(?:second|time|took)[^<]*</dt>\s*<dd>[^<]*</dd>", "~"),
    (r'"(images_per_second|seconds|eager_seconds|took|spent|peak_memory)": [^,}\n]+', r'"\1": ~'),
    (rf"\d[\d.,]*(?: |&nbsp;)(?:{UNITS})\b", "~"),
)
CLOCKED = ("images_per_second", "seconds")  # columns
BY_TIME = re.compile(r"(^|/)(tuned|state|tensorboard)/|cost\.json$")  # how much of it there is depends on the clock


def read(file: Path) -> list[str]:
    """Return a file's lines, everything of one moment blotted out."""
    if file.suffix in BYTES:
        return [hashlib.sha256(file.read_bytes()).hexdigest()]
    if file.name == "metrics.csv":
        rows = list(csv.DictReader(file.open(encoding="utf-8")))
        return [str({name: value for name, value in row.items() if name not in CLOCKED}) for row in rows]
    text = file.read_text(encoding="utf-8")
    for pattern, by in TIMED:
        text = re.sub(pattern, by, text, flags=re.DOTALL)
    return text.replace("><", ">\n<").splitlines()


def find(root: Path) -> dict[str, Path]:
    """Return the files that are compared, by their names below a folder."""
    files = (file for file in sorted(root.rglob("*")) if file.suffix in TEXTS + BYTES)
    named = {file.relative_to(root).as_posix(): file for file in files}
    return {name: file for name, file in named.items() if not BY_TIME.search(name)}


def words(lines: list[str]) -> list[str]:
    """Return lines without their numbers."""
    return [re.sub(r"[\d.,~+-]+(e-?\d+)?", "#", line) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--lines", type=int, default=4, help="differing lines shown of each file")
    args = parser.parse_args()
    before, after = find(args.before), find(args.after)
    kinds = {"same": 0, "numbers": 0, "words": 0}
    for name in sorted(before | after):
        pair = [read(files[name]) if name in files else [] for files in (before, after)]
        kind = "same" if pair[0] == pair[1] else "numbers" if words(pair[0]) == words(pair[1]) else "words"
        kinds[kind] += 1
        if kind != "same":
            lines = [line for line in difflib.unified_diff(*pair, n=0, lineterm="") if not line.startswith("@@")][2:]
            shown = (line[:160] for line in lines[: args.lines])
            print(f"{name}: {kind} differ in {len(lines)} lines", *shown, sep="\n  ")
    counts = f"{kinds['same']} the same, {kinds['numbers']} but for numbers, {kinds['words']} not"
    print(f"{len(before | after)} files: {counts}")
    return int(kinds["words"] > 0)


if __name__ == "__main__":
    sys.exit(main())
