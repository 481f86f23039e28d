"""Draw time per image against image size from a table that benchmarks/models.py printed.

python benchmarks/chart.py benchmarks/results/resolution_cpu.md docs/resolution.svg
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 380, 70, 50, 46, 190
COLOURS = ["#c2410c", "#0f766e", "#6d28d9", "#475569", "#94a3b8"]
ROW = re.compile(r"\| inference \| \S+ \| (\d+) \| (\d+) \| (\S+) \| ([\d.]+) \|")


def read(text: str) -> dict[str, dict[int, float]]:
    """Seconds per image by model and image side; a model raced twice keeps its first figure."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for _, side, name, rate in ROW.findall(text):
        series[name].setdefault(int(side), 1 / float(rate))
    return dict(series)


def draw(series: dict[str, dict[int, float]]) -> str:
    sides = sorted({side for points in series.values() for side in points})
    top = max(max(points.values()) for points in series.values())

    def x(side: float) -> float:
        return LEFT + (side - sides[0]) / (sides[-1] - sides[0]) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - seconds / top * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 13px }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold">Seconds per image, two CPU cores, float32</text>',
    ]
    for tick in range(5):
        value = top * tick / 4
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>')
    for side in sides:
        parts.append(f'<text x="{x(side):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{side}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">image side, pixels</text>')
    labels = sorted(series, key=lambda name: -max(series[name].values()))
    last = TOP - 18.0
    for name, colour in zip(labels, COLOURS, strict=False):
        points = sorted(series[name].items())
        line = " ".join(f"{x(side):.1f},{y(seconds):.1f}" for side, seconds in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        last = max(last + 18, y(points[-1][1]) + 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{last:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(read(source.read_text())))
