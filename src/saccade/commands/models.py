"""`saccade models`."""

import json
from argparse import ArgumentParser
from typing import Any

from rich.console import Console
from rich.table import Table

from . import JSON, Args


def flags(parser: ArgumentParser) -> None:
    """List the backbones with their parameters and multiply-adds, counted and as published."""
    parser.add_argument("--json", action="store_true", help=JSON)


def run(args: Args) -> None:
    """Print every backbone with its counted and published size."""
    from ..settings.model_sizes import COUNTED, PUBLISHED

    rows: list[dict[str, Any]] = []
    for name, size in COUNTED.items():
        paper = PUBLISHED.get(name)
        rows.append(
            {
                "name": name,
                "img_size": size.img_size,
                "params_m": round(size.params / 1e6, 3),
                "paper_params_m": paper and paper.params,
                "gmacs": round(size.macs / 1e9, 3),
                "paper_gmacs": paper and paper.gmacs,
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title="Backbones (differences from the papers: docs/models.md)")
    table.add_column("name", no_wrap=True)
    for column in ("size", "params M", "paper", "GMACs", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            str(row["img_size"]),
            f"{row['params_m']:.2f}",
            "-" if row["paper_params_m"] is None else f"{row['paper_params_m']:g}",
            f"{row['gmacs']:.2f}",
            "-" if row["paper_gmacs"] is None else f"{row['paper_gmacs']:g}",
        )
    Console().print(table)
