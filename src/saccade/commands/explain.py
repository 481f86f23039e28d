"""`saccade explain`."""

from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from . import Args

WRITES = r"explanation(-\d+)?(/(index\.html|numbers\.json|(image|picture)-\d+(/[\w-]+\.png)?))?"  # in a run's folder

OF_VIEW = {"block": "slots-training", "epochs": "slots-training", "heads": "attention", "cka": "cka", "method": "words"}


def flags(parser: ArgumentParser) -> None:
    """Show what a model did with images: where it looked, what it clustered and nominated, which layers are alike."""
    parser.add_argument("run", help="a run's folder, its model.safetensors, a timm model's name or NAME@FILE")
    parser.add_argument("images", nargs="+", help="images or folders of them, such as cat.jpg or photos/; or texts")
    parser.add_argument("--out", help="the page's folder; RUN/explanation if not given")
    parser.add_argument("--views", help="only these, such as attention,cka; all that apply if not given")
    parser.add_argument("--layers", help="only layers in these modules, such as blocks.3,blocks.11")
    parser.add_argument("--against", help="a second run, to compare answers and layers with")
    parser.add_argument("--data", help="images to compare layers by (CKA); `run`: the run's validation images")
    parser.add_argument("--samples", type=int, default=64, help="how many images of --data")
    parser.add_argument("--block", help="slots during training: a block with slots, by number or path")
    parser.add_argument("--epochs", help="slots during training: after these epochs, such as 1,5,300")
    parser.add_argument("--heads", default="mean", help="attention: the mean of the heads, all, or some, such as 0,3")
    parser.add_argument("--cka", default="unbiased", choices=["unbiased", "biased"], help="estimate of CKA")
    parser.add_argument(
        "--method",
        default="gradient",
        choices=["gradient", "integrated"],
        help="words: gradient times input, or integrated",
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; the CPU if not given")
    parser.add_argument("--overwrite", action="store_true", help="replace the explanation that --out names")


def run(args: Args) -> None:
    """Write the page and print where it is."""
    from ..explanation.explain import explain as make
    from ..explanation.result import FOLDER

    _refuse_unread(args)
    names = {name: args[name].split(",") if args[name] else None for name in ("views", "layers")}
    home = Path(args.run).expanduser()
    named = args.out or (home if home.is_dir() else Path()) / "explanation"
    out = FOLDER.choose(named, overwrite=args.overwrite)
    console = Console(stderr=True, soft_wrap=True)
    with console.status("explaining") as line:
        explanation = make(
            args.run,
            args.images,
            **args.given_to(
                make,
                **names,
                block=int(args.block) if str(args.block).isdigit() else args.block,
                epochs=None if args.epochs is None else _numbers("--epochs", args.epochs),
                heads=args.heads if args.heads in ("mean", "all") else _numbers("--heads", args.heads),
                estimator=args.cka,
                progress=lambda what: line.update(f"explaining: {escape(what)}"),
            ),
        )
        line.update("writing the page")
        page = explanation.save(out, overwrite=args.overwrite)
    for image in explanation.samples:
        best = ", ".join(f"{name} {text}" for name, text, _ in image.rows[:3]) or (image.said and image.said.text)
        console.print(f"{image.name}: {best or 'no answer for the whole image'}", markup=False, highlight=False)
    print(page)


def _refuse_unread(args: Args) -> None:
    """Refuse flags of views that were not asked for, and of images that were not named."""
    from ..config import ConfigError

    views = args.views.split(",") if args.views else []
    for name, view in OF_VIEW.items():
        if name in args.given and views and view not in views:
            raise ConfigError(f"--{name} was given, which is of the view {view}; add it to --views, or leave it out")
    if "samples" in args.given and args.data is None:
        raise ConfigError("--samples was given, which counts the images of --data; name them, or leave it out")


def _numbers(flag: str, text: str) -> list[int]:
    """Read numbers with commas between them."""
    try:
        return [int(part) for part in str(text).split(",")]
    except ValueError:
        raise ValueError(
            f"{flag} {text} was given; write whole numbers with commas between them, such as 1,5"
        ) from None
