"""A detector that learns ten images by heart and is asked about them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import saccade

from .objects import make_objects

COCO128 = "SACCADE_COCO128"  # names a folder of real images: instances_train.json, images/train
IMAGES, SIDE = 10, 160
LEAST = 0.08  # side of the smallest object of an image that is taken, in sides of the image
HEADS = {
    "retinanet": ("retinanet:width=64,depth=2,groups=16", 150),
    "atss": ("atss:width=64,depth=2", 150),
    "reppoints_v2": ("reppoints_v2:width=64,depth=2", 200),
    "mask_rcnn": ("mask_rcnn:width=64,hidden=128,sampled=64,proposals=100", 150),
    "cascade": ("cascade:width=64,hidden=128,sampled=64,proposals=100", 150),
    "sparse_rcnn": ("sparse_rcnn:width=64,proposals=30,looks=3", 400),
}


def ten_images(root: Path) -> Path:
    """Write ten images to train on, and the same to validate on: real ones where there are some, else drawn ones."""
    if not os.environ.get(COCO128):
        make_objects(root, train=IMAGES, val=1, side=SIDE, objects=4)
        shutil.copy(root / "train.json", root / "val.json")
        return root
    source = Path(os.environ[COCO128])
    whole = json.loads((source / "instances_train.json").read_text())
    objects: dict[int, list[Any]] = {}
    for one in whole["annotations"]:
        objects.setdefault(one["image_id"], []).append(one)
    chosen = []
    for image in whole["images"]:
        sides = [min(one["bbox"][2:]) for one in objects.get(image["id"], [])]
        if sides and min(sides) >= LEAST * max(image["width"], image["height"]) and len(chosen) < IMAGES:
            chosen.append(image)
    (root / "images").mkdir(parents=True)
    for image in chosen:
        found = next(source.rglob(Path(image["file_name"]).name))
        image["file_name"] = f"images/{found.name}"
        shutil.copy(found, root / image["file_name"])
    annotations = [one for image in chosen for one in objects[image["id"]]]
    used = {one["category_id"] for one in annotations}
    kinds = [one for one in whole["categories"] if one["id"] in used]
    for part in ("train", "val"):
        listed = {"images": chosen, "annotations": annotations, "categories": kinds}
        (root / f"{part}.json").write_text(json.dumps(listed))
    return root


def learn_by_heart(name: str, folder: Path, *, device: str = "cpu") -> dict[str, float]:
    """Return what a detector reaches on the ten images it was trained on."""
    head, epochs = HEADS[name]
    more = {"model.head": head, "augment.flip": 0.0, "augment.jitter": 0.0, "augment.ratio": [1.0, 1.0]}
    more |= {"keep.ema": None, "keep.evaluate_every": epochs, "data.workers": 0, "model.drop_path": 0.0}
    more |= {"engine.compile": False, "keep.every_seconds": 1e9}
    run = saccade.train(
        str(ten_images(folder / "set")), task="detect:scale=[1,1]", model="resnet18", epochs=epochs, batch_size=5,
        lr=1e-3, img_size=SIDE, out=folder / "run", device=device, settings=more, quiet=True,
    )  # fmt: skip
    told = json.loads((Path(run.path) / "summary.json").read_text())
    return {key: float(value) for key, value in told.items() if key.startswith("val_")}
