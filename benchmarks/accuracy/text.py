"""ClassT, WordT and ClassT+WordT on CoLA and RTE, and sentences a second beside Hugging Face's Trainer.

    python benchmarks/accuracy/text.py smoke --model FOLDER --data GLUE --work DIR  # a few steps: does everything run?
    python benchmarks/accuracy/text.py speed --model FOLDER --data GLUE --work DIR
    python benchmarks/accuracy/text.py tune --model FOLDER --data GLUE --work DIR
    python benchmarks/accuracy/text.py compare --model FOLDER --data GLUE --work DIR
    python benchmarks/accuracy/text.py all --model FOLDER --data GLUE --work DIR      # what can be told, tune, compare

FOLDER is a pretrained model with its tokenizer, GLUE a folder that holds CoLA/ and RTE/. Every head is tuned with as
many trials as the others, on the development set, as the paper does: the numbers are therefore a little too good, for
all heads alike. `compare` takes what `tune` chose (tuned.json) and trains each head with ten seeds.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HEADS = ("ClassT", "WordT", "ClassT+WordT")
SETS = {"CoLA": 5, "RTE": 10}  # epochs
RATES = (5e-6, 1e-5, 2e-5, 5e-5, 1.5e-4)
TEXTS = {
    "CoLA": (1043, 0.72),
    "RTE": (277, 0.60),
}  # development texts, and about the accuracy of ClassT
PAPER = {"CoLA": (54.8, 56.4, 58.0), "RTE": (67.2, 69.0, 69.3)}  # Table 1: BERT-base, the paper's nearest model
KEPT = {"keep.states": 1, "keep.every_seconds": 1e9}
BATCH, WARM, TIMED = 32, 1, 2  # epochs that are not timed, and that are


def trials(head: str) -> list[dict[str, Any]]:
    """Return the settings to try, as many for each head: five rates by two batches, or by two representations."""
    if head == "ClassT":
        return [{"lr": lr, "batch_size": size, "plugin": None} for lr in RATES for size in (16, 32)]
    start = "second_order:class_token=none," if head == "WordT" else "second_order:"
    plugins = [f"{start}num_heads=1,head_dim={dim},drop_rate=0.5" for dim in (32, 64)]  # 1K and 4K
    return [{"lr": lr, "batch_size": BATCH, "plugin": plugin} for lr in RATES for plugin in plugins]


def can_tell(args: argparse.Namespace) -> None:
    """Print the smallest differences of accuracy that so few texts can tell, four times out of five, at 95%."""
    from saccade.statistics import plan_detectable

    for name, (texts, accuracy) in TEXTS.items():
        now, most = (100 * plan_detectable(seeds, texts, accuracy) for seeds in (args.seeds, 10_000))
        gain = max(PAPER[name]) - PAPER[name][0]
        print(
            f"{name}: {texts:,} texts and {args.seeds} seeds tell differences of {now:.1f} points of accuracy, any "
            f"number of seeds {most:.1f}; the paper's gain is {gain:.1f}{' of Matthews' if name == 'CoLA' else ''}",
            flush=True,
        )


def tune(args: argparse.Namespace) -> None:
    """Try every head's settings with one seed, trials side by side, and keep the best on the development set.

    Trials that `tuned.json` has are not made again.
    """
    found = read(args.out / "tuned.json").get("trials", [])
    known = [{key: one[key] for key in ("set", "head", "lr", "batch_size", "plugin")} for one in found]
    jobs = [
        (args, name, head, number)
        for name in SETS
        for head in HEADS
        for number, trial in enumerate(trials(head))
        if {"set": name, "head": head, **trial} not in known
    ]
    # The longest first.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.parallel, mp_context=spawn, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(try_out, job) for job in jobs]):
            found.append(done.result())
            write(args.out / "tuned.json", {"trials": found})  # a limit may end it any time
    order = [(name, head, trial) for name in SETS for head in HEADS for trial in trials(head)]
    found.sort(key=lambda one: order.index((one["set"], one["head"], {key: one[key] for key in order[0][2]})))
    best = {name: {head: _best(found, name, head) for head in HEADS} for name in SETS}
    write(args.out / "tuned.json", {"trials": found, "best": best})


def try_out(job: tuple[argparse.Namespace, str, str, int]) -> dict[str, Any]:
    """Train once and return what it reached on the development set."""
    import saccade

    args, name, head, number = job
    trial, begun = trials(head)[number], time.monotonic()
    out = args.work / f"tune-{name}-{head}-{number}"
    done = saccade.train(
        str(args.data / name),
        task="text",
        model=str(args.model),
        plugins=[trial["plugin"]] if trial["plugin"] else [],
        lr=trial["lr"],
        batch_size=trial["batch_size"],
        epochs=args.epochs or SETS[name],
        seed=100,
        device=args.device,
        out=out,
        overwrite=True,
        quiet=True,
        settings={**KEPT, **({"data.train_limit": args.limit} if args.limit else {})},
    )
    shutil.rmtree(out, ignore_errors=True)
    seconds = time.monotonic() - begun
    print(f"{name:5} {head:13} {trial} {done.metric} {done.score:.4f} ({seconds:.0f} s)", flush=True)
    return {"set": name, "head": head, **trial, "metric": done.metric, "score": done.score, "seconds": seconds}


def _best(found: list[dict[str, Any]], name: str, head: str) -> dict[str, Any]:
    return max((one for one in found if (one["set"], one["head"]) == (name, head)), key=lambda one: one["score"])


def compare(args: argparse.Namespace) -> None:
    """Train every head with its tuned settings and ten seeds."""
    import saccade

    best = json.loads((args.out / "tuned.json").read_text())["best"]
    for name in args.set or SETS:
        arms = []
        for head in HEADS:
            chosen = best[name][head]
            settings = f"lr={chosen['lr']},batch_size={chosen['batch_size']}"
            arms.append(f"{head}:={chosen['plugin']}+{settings}" if chosen["plugin"] else f"{head}:={settings}")
        more = {**KEPT, **({"data.train_limit": args.limit} if args.limit else {})}
        saccade.compare(
            str(args.data / name),
            task="text",
            model=str(args.model),
            arms=arms,
            seeds=args.seeds,
            epochs=args.epochs or SETS[name],
            parallel=args.parallel,
            device=args.device,
            settings=more,
            out=args.work / f"compare-{name}",
            overwrite=True,
        )
        folder = args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("result.json", "result.md", "report.html"):
            shutil.copyfile(args.work / f"compare-{name}" / file, folder / file)
    summarize(args, best)


def summarize(args: argparse.Namespace, best: dict[str, Any]) -> None:
    """Write the means of all sets that were compared beside the paper's."""
    lines = ["| set | head | chosen | here, mean of seeds | paper, BERT-base |", "| --- | --- | --- | --- | --- |"]
    for name, papers in PAPER.items():
        arms = {arm["name"]: arm["mean"] for arm in read(args.out / name / "result.json").get("arms", [])}
        for head, paper in zip(HEADS, papers, strict=True):
            chosen = best[name][head]
            how = f"lr {chosen['lr']:g}, {chosen['plugin'] or chosen['batch_size']}"
            if arms:
                mean = "failed" if arms[head] is None else f"{100 * arms[head]:.1f}"
                lines.append(f"| {name} | {head} | {how} | {mean} | {paper} |")
    (args.out / "summary.md").write_text("\n".join(lines) + "\n")


def speed(args: argparse.Namespace) -> None:
    """Time training by saccade and by Hugging Face's Trainer on the same model, texts, batch and precision.

    Rows that `speed.json` has are not timed again; the two numbers of a row are always of one run.
    """
    import torch
    import transformers

    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    about = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__, "batch": BATCH}
    found: list[dict[str, Any]] = read(args.out / "speed.json").get("sentences_per_second", [])
    known = [(row["set"], row["head"]) for row in found]
    for name in SETS:
        for head in ("ClassT", "ClassT+WordT"):
            if (name, head) in known:
                continue
            plugin = trials(head)[0]["plugin"]
            ours, seconds = time_ours(args, name, plugin)
            theirs = time_trainer(args, name, plugin)
            found.append({"set": name, "head": head, "saccade": ours, "trainer": theirs, "ratio": ours / theirs})
            print(json.dumps(found[-1]), seconds, flush=True)
            write(args.out / "speed.json", {**about, "sentences_per_second": found})  # a limit may end it any time


def time_ours(args: argparse.Namespace, name: str, plugin: str | None) -> tuple[float, str]:
    """Return sentences a second over whole epochs after the first, the device waited for at both ends."""
    import torch

    import saccade
    from saccade.training.loop import Loop

    seconds, whole = [], Loop._train_epoch

    def timed(self: Loop) -> None:
        wait(torch)
        begun = time.monotonic()
        whole(self)
        wait(torch)
        seconds.append((time.monotonic() - begun, self.feed.steps))

    Loop._train_epoch = timed  # type: ignore[method-assign]
    try:
        more = {**KEPT, **({"data.train_limit": args.limit} if args.limit else {})}
        saccade.train(
            str(args.data / name),
            task="text",
            model=str(args.model),
            plugins=[plugin] if plugin else [],
            epochs=WARM + TIMED,
            batch_size=BATCH,
            lr=5e-5,
            device=args.device,
            out=args.work / "speed",
            overwrite=True,
            quiet=True,
            settings=more,
        )
    finally:
        Loop._train_epoch = whole  # type: ignore[method-assign]
    shutil.rmtree(args.work / "speed", ignore_errors=True)
    timed_seconds = sum(one for one, _ in seconds[WARM:])
    return BATCH * sum(steps for _, steps in seconds[WARM:]) / timed_seconds, f"{timed_seconds:.2f} s"


def time_trainer(args: argparse.Namespace, name: str, plugin: str | None) -> float:
    """Return the same of Hugging Face's Trainer: texts tokenized before, padded to the longest, grouped by length."""
    import torch
    import transformers

    import saccade
    from saccade.building.build import parse_plugin
    from saccade.plugins import PLUGINS
    from saccade.settings import DataConfig
    from saccade.tasks.opening import open_samples
    from saccade.training.setup import limit_samples

    data = open_samples("text", DataConfig(path=str(args.data / name)))[1]
    source = limit_samples(data.train, args.limit)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=len(data.outputs))
    if plugin:
        kind, options = parse_plugin(plugin)
        saccade.attach(model, PLUGINS[kind](**options))
    rows = [
        dict(tokenizer(*source.text(n), truncation=True), labels=source.targets.read(n)) for n in range(len(source))
    ]
    steps = len(rows) // BATCH
    marks: list[float] = []

    class Marks(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, _told: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step in (WARM * steps, (WARM + TIMED) * steps):
                wait(torch)
                marks.append(time.monotonic())

    options = {
        "output_dir": str(args.work / "trainer"),
        "max_steps": (WARM + TIMED) * steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 5e-5,
        "bf16": args.device.startswith("cuda"),
        "use_cpu": not args.device.startswith("cuda"),
        "optim": "adamw_torch_fused",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "dataloader_num_workers": 2 if args.device.startswith("cuda") else 0,
        "max_grad_norm": 1.0,
    }
    try:
        told = transformers.TrainingArguments(group_by_length=True, **options)
    except TypeError:  # later versions call it so
        told = transformers.TrainingArguments(train_sampling_strategy="group_by_length", **options)
    collate = transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
    trainer = transformers.Trainer(
        model=model, args=told, train_dataset=rows, data_collator=collate, callbacks=[Marks()]
    )
    trainer.train()
    return BATCH * TIMED * steps / (marks[1] - marks[0])


def wait(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, told: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")


def smoke(args: argparse.Namespace) -> None:
    """Run a few steps of everything."""
    args.limit, args.epochs, args.seeds = args.limit or 128, 1, 2
    args.out = args.work / "smoke"
    for step in (can_tell, speed, tune, compare):
        begun = time.monotonic()
        step(args)
        print(f"{step.__name__}: {time.monotonic() - begun:.0f} s", flush=True)


def everything(args: argparse.Namespace) -> None:
    """Say what can be told, tune and compare."""
    for step in (can_tell, tune, compare):
        step(args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["smoke", "speed", "tune", "compare", "all"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/accuracy/results/text"))
    parser.add_argument("--set", action="append", choices=list(SETS), help="of `compare`; all if not given")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--limit", type=int, default=None, help="training texts")
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    args.work.mkdir(parents=True, exist_ok=True)
    {"smoke": smoke, "speed": speed, "tune": tune, "compare": compare, "all": everything}[args.step](args)


if __name__ == "__main__":
    main()
