"""`saccade explain`."""

from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from . import DEVICE, TARGET, Args

WRITES = r"explanation(-\d+)?(/(index\.html|numbers\.json|(image|picture)-\d+(/[\w-]+\.png)?))?"  # in a run's folder

OF_VIEW = {
    "block": "slots-training",
    "epochs": "slots-training",
    "heads": "attention",
    "cka": "cka",
    "method": "words or regions",
}


def flags(parser: ArgumentParser) -> None:
    """Explain a model's predictions: attention, slots, nominations, Grad-CAM, CKA, influence of words."""
    parser.add_argument("run", metavar="RUN", help=TARGET)
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="image files or directories; texts, or tables of images and questions, for a model that reads these",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="output directory of the page (default: `explanation` in the run directory)"
    )
    parser.add_argument("--views", help="views to make, e.g. attention,cka (default: all that apply to the model)")
    parser.add_argument("--layers", help="modules to show, e.g. blocks.3,blocks.11 (default: all)")
    parser.add_argument("--against", metavar="RUN", help="second model, whose predictions and layers are compared")
    parser.add_argument(
        "--beside",
        metavar="RUN",
        action="append",
        default=[],
        help="further model, whose attributions of the same images or texts are shown next to RUN's; repeatable",
    )
    parser.add_argument(
        "--data", help="dataset for the CKA view; `run` is the run's validation split (default: the given images)"
    )
    parser.add_argument("--samples", type=int, default=64, metavar="N", help="number of images of --data")
    parser.add_argument(
        "--block", help="slots-training view: number or path of a block with slots (default: the middle one)"
    )
    parser.add_argument(
        "--epochs",
        metavar="LIST",
        help="slots-training view: epochs to show, e.g. 1,5,300 (default: all that were kept)",
    )
    parser.add_argument(
        "--heads", default="mean", help="attention view: `mean` over the heads, `all`, or a list of heads, e.g. 0,3"
    )
    parser.add_argument("--cka", default="unbiased", choices=["unbiased", "biased"], help="cka view: CKA estimator")
    parser.add_argument(
        "--method",
        default="gradient",
        choices=["gradient", "integrated", "relevance", "lime"],
        help="words and regions views: gradient times input or integrated gradients; words of texts also by propagated "
        "relevance or LIME, as in SoT's figure",
    )
    parser.add_argument("--device", help=f"{DEVICE} (default: cpu)")
    parser.add_argument("--overwrite", action="store_true", help="replace the explanation in --out")


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
        console.print(f"{image.name}: {best or 'no prediction for the whole image'}", markup=False, highlight=False)
    print(page)


def _refuse_unread(args: Args) -> None:
    """Refuse flags of views that are not requested."""
    from ..settings import ConfigError

    views = args.views.split(",") if args.views else []
    for name, view in OF_VIEW.items():
        if name in args.given and views and not set(view.split(" or ")) & set(views):
            raise ConfigError(
                f"--{name} is an option of the view {view}, which is not selected; add the view to --views, or "
                "remove the option"
            )
    if "samples" in args.given and args.data is None:
        raise ConfigError("--samples has no effect without --data; add --data, or remove it")


def _numbers(flag: str, text: str) -> list[int]:
    """Parse comma-separated numbers."""
    try:
        return [int(part) for part in str(text).split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text}: expected whole numbers separated by commas, e.g. 1,5") from None
