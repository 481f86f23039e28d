"""Count multiply-adds against image size and draw them.

    python benchmarks/speed/chart.py docs/resolution.svg > benchmarks/speed/results/resolution.md

Counted, not timed: the same on every machine (see size.py for what is counted).
"""

import sys
from pathlib import Path

from size import model_size

import saccade  # noqa: F401, registers the backbones

NAMES = ["deit_small_patch16_224", "sot_small", "swin_tiny_patch4_window7_224", "nommer_tiny", "glnet_4g"]
SIDES = [224, 384, 512, 640, 768, 896, 1024]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 380, 70, 50, 46, 220
COLOURS = ["#475569", "#6d28d9", "#94a3b8", "#c2410c", "#0f766e"]


def as_table(series: dict[str, dict[int, float]]) -> str:
    lines = ["| GMACs | " + " | ".join(map(str, SIDES)) + " |", "| --- |" + " --: |" * len(SIDES)]
    lines += [f"| {name} | " + " | ".join(f"{points[s]:.1f}" for s in SIDES) + " |" for name, points in series.items()]
    return "\n".join(lines)


def draw(series: dict[str, dict[int, float]]) -> str:
    sides = sorted({side for points in series.values() for side in points})
    top = max(max(points.values()) for points in series.values())

    def x(side: float) -> float:
        return LEFT + (side - sides[0]) / (sides[-1] - sides[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 13px }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold">Billions of multiply-adds for one image</text>',
    ]
    for tick in range(5):
        value = top * tick / 4
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
    for side in sides:
        parts.append(f'<text x="{x(side):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{side}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">image side, pixels</text>')
    colours = dict(zip(series, COLOURS, strict=True))
    last = TOP - 18.0
    for name in sorted(series, key=lambda name: -series[name][sides[-1]]):
        colour = colours[name]
        points = sorted(series[name].items())
        line = " ".join(f"{x(side):.1f},{y(value):.1f}" for side, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        last = max(last + 18, y(points[-1][1]) + 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{last:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    counts = {name: {side: model_size(name, side).macs / 1e9 for side in SIDES} for name in NAMES}
    Path(sys.argv[1]).write_text(draw(counts))
    print(f"Command: python benchmarks/speed/chart.py {sys.argv[1]}\n\n{as_table(counts)}")
