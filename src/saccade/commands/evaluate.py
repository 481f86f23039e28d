"""`saccade evaluate`."""

from argparse import ArgumentParser
from pathlib import Path

from ..importing import quick_imports
from . import Args

WRITES = r"evaluation(-\d+)?(/evaluation\.(json|html))?"  # in a run's folder


def flags(parser: ArgumentParser) -> None:
    """Measure finished models by their task's metrics, with intervals, and with --robust what throws them off."""
    parser.add_argument(
        "runs", nargs="+", help="runs, their model.safetensors, a timm model's name, NAME@FILE; several: side by side"
    )
    parser.add_argument("--data", help="images to ask about; the runs' own validation images if not given")
    parser.add_argument("--columns", help="of a list as --data, which are what: image=name,label=breed")
    parser.add_argument("--task", help="other options of the models' task, as in segment:flip=true")
    parser.add_argument(
        "--robust", action="store_true", help="occlude and corrupt the images as well, and attack those of classifiers"
    )
    parser.add_argument("--limit", type=int, help="ask about so many images, evenly by class, label or number")
    parser.add_argument("--labels", help="of classifiers: ReaL's real.json, or a JSON object from class to class")
    parser.add_argument(
        "--subset", help="of classifiers: a file of the classes to choose from, one a line (ImageNet-A)"
    )
    parser.add_argument("--epsilon", action="append", type=float, help="of the attacks, in 255ths; repeatable; 1 and 4")
    parser.add_argument(
        "--folds", type=int, help="train the run's settings anew on so many folds and judge them by all"
    )
    parser.add_argument("--repeats", type=int, default=1, help="with --folds: ways to cut them")
    parser.add_argument("--seeds", type=int, default=2, help="with --folds: trainings of every fold")
    parser.add_argument("--group", metavar="COLUMN", help="with --folds: as for train")
    parser.add_argument("--parallel", type=int, help="with --folds: runs side by side")
    parser.add_argument(
        "--average", action="store_true", help="judge the mean of the runs' weights as well; --out keeps it"
    )
    parser.add_argument("--steps", type=int, default=10, help="of PGD from each start")
    parser.add_argument("--restarts", type=int, default=2, help="starts of PGD")
    parser.add_argument("--seed", type=int, default=0, help="of chosen images, draws and resamples")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--batch-size", type=int, default=64, help="images at a time")
    parser.add_argument("--workers", type=int, default=0, help="processes that read files")
    parser.add_argument(
        "--out", help="folder of evaluation.json and .html; RUN/evaluation of the first run if not given"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the evaluation there; else it gets a number")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="print the result alone")


def run(args: Args) -> int:
    """Measure models and print what was found."""
    if args.folds is not None:
        return _over_folds(args)
    with quick_imports():
        from ..config import ConfigError
        from ..evaluation.evaluate import EPSILONS
        from ..evaluation.evaluate import evaluate as run_evaluation
        from ..report.document import to_terminal

    attacks = ("epsilon", "steps", "restarts")
    if not args.robust and (unused := args.given.intersection(attacks)):
        raise ConfigError(
            f"--{min(unused)} was given, and only --robust attacks a model; give --robust, or leave it out"
        )
    args.refuse_others("without --folds", run_evaluation, "runs", "epsilon", "average", "json")
    first = Path(args.runs[0]).expanduser()
    out = args.out or (first if first.is_dir() else Path()) / "evaluation"
    if args.average:
        from ..averaging import average_weights

        args.runs.append(str(average_weights(args.runs, Path(out).with_name("averaged.safetensors"))))
    given = args.given_to(run_evaluation, out=out, epsilons=args.epsilon or EPSILONS)
    result = run_evaluation(args.runs, args.data, **given)
    print(result.to_json() if args.json else to_terminal(result.to_markdown()))
    return 0


def _over_folds(args: Args) -> int:
    from ..comparison.cross import cross_validate
    from ..config import ConfigError

    args.refuse_others("with --folds", cross_validate, "runs", "json")
    if len(args.runs) > 1:
        raise ConfigError("several runs were given with --folds; compare them by saccade compare --folds")
    device = None if args.device == "cpu" else args.device
    result = cross_validate(args.runs[0], **args.given_to(cross_validate, device=device))
    print(result.to_json() if args.json else result.to_markdown())
    return 0
