"""`saccade evaluate`."""

from argparse import ArgumentParser
from pathlib import Path

from ..support.importing import quick_imports
from . import BATCH_SIZE, COLUMNS, COLUMNS_AS, DEVICE, JSON, QUIET, TARGET, WORKERS, Args

WRITES = r"evaluation(-\d+)?(/evaluation\.(json|html))?"  # files written in a run's folder


def flags(parser: ArgumentParser) -> None:
    """Evaluate trained models: the task's metrics with confidence intervals and, with --robust, their robustness."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help=f"{TARGET}; several are compared with the first")
    parser.add_argument("--data", help="dataset to evaluate on, as for train (default: the run's validation split)")
    parser.add_argument("--columns", metavar=COLUMNS_AS, help=f"{COLUMNS}; with --data")
    parser.add_argument(
        "--task", help="task options other than those of training, e.g. segment:flip=true (default: the run's)"
    )
    parser.add_argument(
        "--robust",
        action="store_true",
        help="also evaluate under corruptions and occlusions, and classifiers under adversarial attacks (FGSM, PGD)",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="evaluate at most N samples, balanced over the classes (default: all)"
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="classifiers: JSON file of other labels: ReaL's real.json, or a mapping from the dataset's classes to the "
        "model's",
    )
    parser.add_argument(
        "--subset", metavar="FILE", help="classifiers: file of the classes to predict among, one per line (ImageNet-A)"
    )
    parser.add_argument(
        "--epsilon",
        action="append",
        type=float,
        metavar="X",
        help="with --robust: attack epsilon in 1/255; repeatable (default: 1 and 4)",
    )
    parser.add_argument(
        "--folds",
        type=int,
        metavar="K",
        help="retrain with the run's settings on K cross-validation folds, and evaluate these models",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="with --folds: repetitions with different splits"
    )
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="with --folds: number of seeds per fold")
    parser.add_argument(
        "--group",
        metavar="COLUMN",
        help="with --folds: column of the list; samples that share its value stay in the same fold",
    )
    parser.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="with --folds: number of concurrent runs (default: one per GPU, 1 on a CPU)",
    )
    parser.add_argument(
        "--average",
        action="store_true",
        help="also evaluate the average of the runs' weights (model soup), saved as averaged.safetensors beside --out",
    )
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="with --robust: PGD steps per restart")
    parser.add_argument("--restarts", type=int, default=2, metavar="N", help="with --robust: PGD restarts")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="random seed for the subset, the perturbations and the bootstrap",
    )
    parser.add_argument("--device", help=f"{DEVICE} (default: cpu; with --folds, GPUs if available)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help=BATCH_SIZE)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help=WORKERS)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="output directory of evaluation.json and evaluation.html (default: `evaluation` in the first run)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the evaluation in --out (default: write to a numbered directory beside it)",
    )
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_argument("--quiet", action="store_true", help=QUIET)


def run(args: Args) -> int:
    """Evaluate models and print the result."""
    if args.folds is not None:
        return _over_folds(args)
    with quick_imports():
        from ..evaluation.evaluate import EPSILONS
        from ..evaluation.evaluate import evaluate as run_evaluation
        from ..report.document import to_terminal
        from ..settings import ConfigError

    attacks = ("epsilon", "steps", "restarts")
    if not args.robust and (unused := args.given.intersection(attacks)):
        raise ConfigError(
            f"--{min(unused)} has no effect without --robust, which runs the attacks; add --robust, or remove it"
        )
    args.refuse_others("without --folds", run_evaluation, "runs", "epsilon", "average", "json")
    first = Path(args.runs[0]).expanduser()
    out = args.out or (first if first.is_dir() else Path()) / "evaluation"
    if args.average:
        from ..building.averaging import average_weights

        args.runs.append(str(average_weights(args.runs, Path(out).with_name("averaged.safetensors"))))
    given = args.given_to(run_evaluation, out=out, epsilons=args.epsilon or EPSILONS, device=args.device or "cpu")
    result = run_evaluation(args.runs, args.data, **given)
    print(result.to_json() if args.json else to_terminal(result.to_markdown()))
    return 0


def _over_folds(args: Args) -> int:
    from ..comparison.cross import cross_validate
    from ..settings import ConfigError

    args.refuse_others("with --folds", cross_validate, "runs", "json")
    if len(args.runs) > 1:
        raise ConfigError("--folds takes a single run; compare several with saccade compare --folds")
    result = cross_validate(args.runs[0], **args.given_to(cross_validate))
    print(result.to_json() if args.json else result.to_markdown())
    return 0
