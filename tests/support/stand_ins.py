"""Small stand-ins for what the documents call IMAGES, RUN, WEIGHTS, CoLA, ..., laid out under the names they use."""

import csv
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import timm
from PIL import Image
from safetensors.torch import save_file

from saccade.building.build import resolve_name
from saccade.cli import main
from saccade.training.loop import Loop
from support.golden import cases
from support.hosted import save_detector, save_segmenter
from support.images import encoded
from support.masks import make_masks
from support.objects import make_objects
from support.published import write_published
from support.questions import make_vilt, questions, write_questions
from support.texts import make_model, sentences, write_cola

CLASSES = ("n01440764", "n01443537", "n02123045")  # which a teacher that was trained on ImageNet knows
SHORT = ["--epochs", "1", "--img-size", "32", "--device", "cpu", "--workers", "0", "--set", "optim.batch_size=8"]


def images(path: Path, *, train: int = 8, val: int = 4) -> None:
    """Write class folders of small JPEG files."""
    for part, count, first in (("train", train, 0), ("val", val, 1000)):
        for place, name in enumerate(CLASSES):
            for number in range(count):
                file = path / part / name / f"{number}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encoded(first + 100 * place + number, height=40, width=48))


def image(path: Path) -> None:
    path.write_bytes(encoded(5, height=60, width=80))


def loose(path: Path) -> None:
    """Write a folder of images without classes."""
    path.mkdir(parents=True)
    for number in range(3):
        (path / f"{number}.jpg").write_bytes(encoded(number, height=60, width=80))


def validation(names: list[str]) -> Callable[[Path], None]:
    """Return what writes class folders of these names, without parts, in files called as ImageNet's."""

    def write(path: Path) -> None:
        for number in range(1, 3 * len(names) + 1):
            file = path / names[number % len(names)] / f"ILSVRC2012_val_{number:08d}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(number, height=60, width=80))

    return write


def table(**columns: Callable[[int], Any]) -> Callable[[Path], None]:
    """Return what writes a list of images with these columns, the images beside it."""

    def write(path: Path) -> None:
        files = path.with_name(f"{path.stem}_images")
        loose(files)
        for number in range(3, 36):
            (files / f"{number}.jpg").write_bytes(encoded(number, height=40, width=48))
        found = sorted(files.iterdir())
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            for number, one in enumerate(found):
                row = {name: value(number) for name, value in columns.items()}
                first = next(iter(columns))
                writer.writerow(row | {first: f"{files.name}/{one.name}"})

    return write


def arrays(path: Path) -> None:
    """Write a part of a set of arrays."""
    draws = np.random.default_rng(len(path.stem) + ord(path.stem[-1]))
    for_split = {"train": 48, "test": 12}
    made = {f"x_{part}": draws.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in for_split.items()}
    np.savez(path, **made, **{f"y_{part}": np.arange(n) % 4 for part, n in for_split.items()})


def own_texts(path: Path) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *sentences(40)])


def ask_table(path: Path) -> None:
    path.write_text("image,question\ncat.jpg,is the film bright\n")


def deep_images(path: Path) -> None:
    """Write images of 12 bits in files of 16."""
    (path / "a").mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 4096, (12, 10), dtype=np.uint16)).save(path / "a" / "1.tif")


def vqa(path: Path) -> None:
    write_questions(path.parent, list(questions(24))).rename(path)


def vqa_folder(path: Path) -> None:
    """Write a table of questions, and VQAv2's test questions."""
    write_questions(path, list(questions(24)))
    (path / "test2015").mkdir()
    image(path / "test2015" / "COCO_test2015_000000000042.jpg")
    asked = {"questions": [{"question_id": 42000, "image_id": 42, "question": "is the film bright"}]}
    (path / "v2_OpenEnded_mscoco_test2015_questions.json").write_text(json.dumps(asked))


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def weights(model: str) -> Callable[[Path], None]:
    """Return what writes random weights of a model."""

    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in timm.create_model(model).state_dict().items()}, path)

    return write


def hub(model: str) -> Callable[[Path], None]:
    """Return what puts random weights of a model of timm where the hub's cache would have its own."""

    def write(cache: Path) -> None:
        cfg = timm.get_pretrained_cfg(resolve_name(model))
        home = cache / f"models--{cfg.hf_hub_id.replace('/', '--')}"
        (home / "refs").mkdir(parents=True, exist_ok=True)
        (home / "refs" / "main").write_text("0")
        weights(resolve_name(model).split(".")[0])(home / "snapshots" / "0" / "model.safetensors")

    return write


TINY_MODEL = (
    "model.options={dims: [16, 32], depths: [1, 1], pattern: [G, A], num_slots: 4, num_heads: [2, 2], patch: 4}"
)
SLOTS = "model.options={dims: [8, 16], depths: [3, 3], pattern: [G, G], num_slots: 4, num_heads: [2, 2], patch: 4}"
RUNS: dict[str, list[str]] = {
    "classifier": ["IMAGES", "--set", TINY_MODEL],
    "other": ["IMAGES", "--set", TINY_MODEL, "--seed", "1"],
    "vit": ["IMAGES", "--model", "vit_tiny"],
    "scaled": ["IMAGES", "--model", "vit_tiny", "--plugin", "broadcast:scale=true"],
    "second_vit": ["IMAGES", "--model", "vit_tiny", "--seed", "1"],
    "glnet": ["IMAGES", "--model", "glnet_stl", "--img-size", "64"],
    "nommer": ["IMAGES", "--model", "nommer_tiny", "--img-size", "64"],
    "kept_slots": [
        *("IMAGES", "--set", SLOTS, "--epochs", "300", "--set", "keep.states=1000000", "--set", "keep.every_steps=1"),
        *("--set", "data.train_limit=6", "--set", "keep.evaluate_every=300"),  # one step an epoch
    ],
    "segmenter": ["MASKS", "--task", "segment", "--set", TINY_MODEL, "--set", "model.head=upernet:width=16,aux=0"],
    "street": ["MASKS", "--task", "segment", "--model", "nommer_tiny", "--img-size", "64"],
    "detector": ["OBJECTS", "--task", "detect", "--set", TINY_MODEL, "--set", "model.head=retinanet:width=16,depth=1"],
}
MAKERS: dict[str, Callable[[Path], Any]] = {
    "images": images,
    "image": image,
    "loose": loose,
    "masks": lambda path: make_masks(path, train=12, val=4),
    "objects": lambda path: make_objects(path, train=6, val=2),
    "birds": table(path=str, labels=lambda n: ("crow|magpie", "crow", "magpie")[n % 3]),
    "xrays": table(path=str, edema=lambda n: n % 2, fracture=lambda n: 1 - n % 3 % 2, view=lambda n: n),
    "faces": table(path=str, age=lambda n: 20 + n, height=lambda n: 150 + n % 7),
    "breeds": table(name=str, breed=lambda n: "ab"[n % 2], other=lambda n: n),
    "arrays": arrays,
    "cola": write_cola,
    "mine": own_texts,
    "text_model": make_model,
    "vilt": make_vilt,
    "vqa": vqa,
    "vqa_folder": vqa_folder,
    "asked": ask_table,
    "lines": text("".join(f"{one}\n" for one, _ in sentences(4))),
    "rt_detr": lambda path: save_detector(path, "rt_detr"),
    "mask2former": lambda path: save_segmenter(path, "mask2former"),
    "by_wnid": validation(list(CLASSES)),
    "by_number": validation(["1", "2", "10"]),
    "wnids": text("".join(f"{name}\n" for name in [*CLASSES, "n02123159"])),
    "real": text(json.dumps([[0, 1], [1], [], *([0], [1], [0, 1]) * 2])),
    "deep": deep_images,
}


class StandIns:
    """Makes each stand-in that takes time once; a page gets copies under its own names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub = root / "hub"

    def lay(self, path: Path, kind: str) -> None:
        """Put a stand-in where a command names it."""
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in MAKERS:
            MAKERS[kind](path)
        elif kind.startswith("weights of "):
            weights(kind.removeprefix("weights of "))(path)
        elif kind.startswith("published "):
            write_published(cases(kind.removeprefix("published "))[0], path)
        elif kind == "exported":
            shutil.copy(self.exported(), path)
        else:
            shutil.copytree(self.run(kind), path)

    def run(self, kind: str) -> Path:
        """Return a finished run."""
        path = self.root / kind
        if not path.exists():
            data, *more = RUNS[kind]
            set_ = self.root / data
            if not set_.exists():
                MAKERS[data.lower()](set_)
            words = ["train", str(set_), "--quiet", *SHORT, *more, "--out", str(path)]  # what is given later wins
            if kind == "kept_slots":
                interrupt(words, 6)
                words = ["train", "--resume", str(path), "--set", "keep.every_steps=1000000", "--quiet"]
            assert main(words) == 0, kind
        return path

    def exported(self) -> Path:
        path = self.root / "exported"
        if not path.exists():
            run = self.run("classifier")
            assert main(["export", str(run), "--out", str(path), "--limit", "4"]) == 0
        return path / "model.onnx"

    def fetch(self, model: str) -> None:
        """Have weights of a model in the hub's cache."""
        cfg = timm.get_pretrained_cfg(resolve_name(model))
        if not (self.hub / f"models--{cfg.hf_hub_id.replace('/', '--')}").exists():
            hub(model)(self.hub)


def interrupt(words: list[str], steps: int) -> None:
    """Train, and press Ctrl-C after so many steps."""
    original, done = Loop._checkpoint_or_stop, iter(range(1, 10**6))

    def stop(self: Loop, *args: Any, **kwargs: Any) -> Any:
        if next(done) == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args, **kwargs)

    with mock.patch.object(Loop, "_checkpoint_or_stop", stop):
        assert main(words) == 130


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def named(command: str) -> dict[str, str]:
    """Return the stand-ins of a command by the names they have in it; runs are named apart."""
    by_task = {"segment": "masks", "detect": "objects", "text": "cola", "vqa": "vqa"}
    task = re.search(r"--task '?(\w+)", command)
    set_ = by_task.get(task[1], "images") if task else "images"
    found = {}
    for pattern, kind in (
        (r"(?:IMAGES|DATA|TEST|IMAGENET|IMAGENET21K|COCO|ADE20K|cifar100|photos|images)", set_),
        (r"(?:PHOTOS|NEW_IMAGES|cats)", "loose"),
        (r"cells", "objects"),
        (r"(?:cat|more|image|street)\.jpg|IMAGE", "image"),
        (r"imagenet-a|imagenet/val", "by_wnid"),
        (r"imagenetv2-\S+", "by_number"),
        (r"cifar100_[ab]\.npz", "arrays"),
        (r"CoLA|RTE|GLUE", "cola"),
        (r"VILT_FOLDER", "vilt"),
        (r"FOLDER", "text_model"),
        (r"my\.csv", "mine"),
        (r"QUESTIONS", "vqa_folder"),
        (r"birds\.csv", "birds"),
        (r"xrays\.csv", "xrays"),
        (r"faces\.csv", "faces"),
        (r"labels\.csv", "breeds"),
        (r"questions\.csv", "vqa"),
        (r"VQAv2", "vqa_folder"),
        (r"asked\.csv", "asked"),
        (r"lines\.txt", "lines"),
        (r"wnids\.txt", "wnids"),
        (r"real\.json", "real"),
        (r"path/to/rtdetr", "rt_detr"),
        (r"path/to/mask2former", "mask2former"),
    ):
        for match in re.finditer(rf"(?<![\w./-])(?:{pattern})(?![\w.-])", command):
            found.setdefault(match[0], kind)
    return found
