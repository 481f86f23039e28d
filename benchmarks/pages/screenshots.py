"""Make every page that saccade writes or serves, and photograph it in Chromium: wide and narrow, light and dark.

    python benchmarks/pages/screenshots.py PETS make WORK  # short runs of every task, in this order
    python benchmarks/pages/screenshots.py PETS shoot WORK SHOTS  # NAME-WIDTH-SCHEME.png; tells what overflows
    python benchmarks/pages/screenshots.py PETS sheet SHOTS sheet.webp --width 400 [--before OTHER_SHOTS]

PETS is a folder with images, masks, labels.csv and COCO lists, as benchmarks/accuracy/segmentation.py has it. For
pages as they were, put another checkout's src first in PYTHONPATH. A command that fails, or did not exist then, is
told; its page is left out.
"""

import argparse
import base64
import csv
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageOps

SHORT = ["--img-size", "32", "--device", "cpu", "--set", "optim.batch_size=16", "--set", "data.workers=0"]
OPTIONS = {
    "VIT": "model.options={embed_dim: 24, depth: 4, num_heads: 3, patch_size: 4}",
    "GLNET": "model.options={dims: [16, 32], depths: [2, 1], pattern: [G, A], num_slots: 4, num_heads: [2, 2]}",
}
WIDTHS, SCHEMES = (1200, 400), ("light", "dark")
LONG = 24_000  # pixels; what is longer is cut

# What is typed, in order; {0}, {1}, ... are images of the validation set.
COMMANDS = """
train CATS --model glnet_nano --set GLNET --epochs 3 --out glnet
train CATS --model vit_tiny --plugin broadcast:scale=true --set VIT --epochs 3 --out vit
train CATS --model test_resnet --epochs 2 --out resnet
evaluate glnet --limit 40 --out evaluation-one
evaluate glnet vit --robust --limit 8 --steps 1 --restarts 1 --out evaluation
compare CATS --model vit_tiny --arm base --arm broadcast --arm drloc --seeds 3 --set VIT --epochs 2 --out comparison
explain vit {0} {1} --against glnet --out explanation-vit
explain glnet {0} --out explanation-glnet
explain resnet {0} {1} {2} {3} --out explanation-resnet
predict vit {0} {1} {2} --draw drawn
tune CATS --model test_resnet --budget 90s --epochs 2 --out tuned
train several.csv --model test_resnet --epochs 2 --out several
evaluate several --out evaluation-several
train numbers.csv --task regress:columns=[width] --model test_resnet --epochs 2 --out numbers
train MASKS --task segment --model test_resnet --set model.head=fpn:width=32 --epochs 2 --out masks
evaluate masks --robust --limit 6 --out evaluation-masks
explain masks {0} --out explanation-masks
predict masks {0} {1} --draw drawn-masks
train TEXTS --task text --model READER --epochs 2 --out texts
explain texts "the film is very good" --out explanation-texts
evaluate texts --out evaluation-texts
data check --answers glnet
train BOXES --task detect --model test_resnet --set model.head=retinanet:width=32,depth=1 --epochs 1 --out boxes
predict boxes {0} {1} --draw drawn-boxes
"""
SERVED = {
    "serve": "serve resnet",
    "serve-two": "serve vit glnet --browse .",
    "serve-masks": "serve masks",
    "serve-boxes": "serve boxes",
    "serve-texts": "serve texts",
    "watch": "watch glnet",
}


def make(pets: Path, work: Path) -> None:
    """Write the sets and run the commands, each once."""
    from saccade.cli import main

    images, log = write_sets(pets, work), work / "done.txt"
    done = log.read_text().splitlines() if log.exists() else []
    for line in (line for line in COMMANDS.splitlines() if line and line not in done):
        words = [OPTIONS[word] if word in OPTIONS else word.format(*images) for word in shlex.split(line)]
        if words[0] in ("train", "compare", "tune"):
            words += SHORT if "text" not in words else SHORT[2:]
        begun = time.monotonic()
        try:
            status: int | str = main(words)
        except (Exception, SystemExit) as error:  # as a user of that time would have met it
            status = f"{type(error).__name__}: {error}"
        print(f"{time.monotonic() - begun:6.1f} s  {status}  {line}", flush=True)
        if status == 0:
            with log.open("a") as file:
                file.write(f"{line}\n")


def write_sets(pets: Path, work: Path) -> list[Path]:
    """Write class folders, lists, masks, boxes and texts; return images of the validation part."""
    rows = list(csv.DictReader((pets / "labels.csv").open()))
    breeds = sorted({row["breed"] for row in rows})[:8]
    chosen = [row for row in rows if row["breed"] in breeds]
    for row in chosen:
        to = work / "CATS" / row["split"] / row["breed"] / f"{row['name']}.jpg"
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy(pets / "images" / to.name, to)
    for name, columns in {"several": ["labels"], "numbers": ["width"]}.items():
        with (work / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "split", *columns])
            for row in chosen:
                path = f"CATS/{row['split']}/{row['breed']}/{row['name']}.jpg"
                labels = f"{row['breed']}|{'wide' if int(row['width']) > 200 else 'narrow'}"
                writer.writerow([path, row["split"], labels if name == "several" else row["width"]])
    for split, count in (("train", 24), ("val", 8)):
        part = [row["name"] for row in rows if row["split"] == split][:: 30 if split == "train" else 37][:count]
        for kind, ending in (("images", "jpg"), ("masks", "png")):
            (work / "MASKS" / kind / split).mkdir(parents=True, exist_ok=True)
            for name in part:
                shutil.copy(pets / kind / f"{name}.{ending}", work / "MASKS" / kind / split)
        write_boxes(pets, work / "BOXES", split, part)
    write_texts(work)
    return sorted((work / "CATS" / "val").rglob("*.jpg"))[::9]


def write_boxes(pets: Path, to: Path, split: str, names: list[str]) -> None:
    """Write a part of a COCO list."""
    found = json.loads((pets / f"instances_{split}.json").read_text())
    images = [image for image in found["images"] if Path(image["file_name"]).stem in names]
    ids = {image["id"] for image in images}
    boxes = [one for one in found["annotations"] if one["image_id"] in ids]
    (to / "images").mkdir(parents=True, exist_ok=True)
    for image in images:
        shutil.copy(pets / "images" / Path(image["file_name"]).name, to / "images")
        image["file_name"] = Path(image["file_name"]).name
    (to / f"{split}.json").write_text(json.dumps({**found, "images": images, "annotations": boxes}))


def write_texts(work: Path) -> None:
    """Write sentences and a tiny model that reads them."""
    from support.texts import make_model, write_cola

    if not (work / "TEXTS").exists():
        write_cola(work / "TEXTS")
        make_model(work / "READER")


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield opened
    finally:
        opened.quit()


@contextmanager
def served(words: list[str]) -> Iterator[str]:
    """Serve on a free port; yield the address when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "saccade.cli", *words, "--port", str(port)], stderr=sys.stderr)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}") from None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)


def shoot(work: Path, to: Path) -> None:
    """Photograph every page under a folder, and those that are served."""
    to.mkdir(parents=True, exist_ok=True)
    found = sorted([*work.glob("*/*.html"), *work.glob("*/suspects/*.html")])
    pages = {"-".join(page.relative_to(work).with_suffix("").parts): page for page in found}
    image = sorted((work / "CATS" / "val").rglob("*.jpg"))[0]
    with browser() as opened:
        for name, page in pages.items():
            photograph(opened, page.as_uri(), to, name)
        for name, words in SERVED.items():
            try:
                with served(words.split()) as address:
                    photograph(opened, address, to, name, asked=None if name in ("watch", "serve-texts") else image)
            except Exception as error:  # no such verb then
                print(f"{name}: {error}", flush=True)


def photograph(opened: Any, address: str, to: Path, name: str, *, asked: Path | None = None) -> None:
    """Photograph one page in every width and scheme, whole; tell what is wider than its window."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            file = to / f"{name}-{width}-{scheme}.png"
            screen(opened, width, 900, scheme)
            opened.get(address)
            if asked is not None:
                ask(opened, asked)
            wide, tall = opened.execute_script(
                "const page = document.documentElement; return [page.scrollWidth, page.scrollHeight]"
            )
            if wide > width:
                print(f"{file.name}: {wide} pixels wide", flush=True)
            screen(opened, width, min(tall, LONG), scheme)
            shot = opened.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
            file.write_bytes(base64.b64decode(shot))
            print(f"{file.name}: {tall} pixels long", flush=True)


def screen(opened: Any, width: int, height: int, scheme: str) -> None:
    """Set the window's size and the scheme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    dark = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})


def ask(opened: Any, image: Path) -> None:
    """Give a served page its first question: an image, or a text where it asks for one; wait for the answer."""
    from selenium.webdriver.common.by import By

    time.sleep(1)
    texts = [one for one in opened.find_elements(By.CSS_SELECTOR, "textarea, input[type=text]") if one.is_displayed()]
    files = opened.find_elements(By.CSS_SELECTOR, "input[type=file]")
    if files:
        files[0].send_keys(str(image.resolve()))
    elif texts:
        texts[0].send_keys("the film is very good")
        opened.find_element(By.CSS_SELECTOR, "form button, button").click()
    for _ in range(120):
        time.sleep(0.5)
        status = opened.find_elements(By.CSS_SELECTOR, "#status")
        if status and ("views are below" in status[0].text or "answered" in status[0].text.lower()):
            break
        if not status:
            break
    time.sleep(1)


def sheet(shots: Path, out: Path, *, width: int, before: Path | None) -> None:
    """Paste the tops of all pages of one width on one sheet; light above dark, and before beside after."""
    names = sorted({file.name.removesuffix(f"-{width}-light.png") for file in shots.glob(f"*-{width}-light.png")})
    folders = [*([before] if before else []), shots]
    wide, tall, per_row = (300, 620, 6) if width == 400 else (440, 560, 4)
    per_row = max(per_row // len(folders), 1)
    columns = per_row * len(folders)
    rows = -(-len(names) // per_row)
    made = Image.new("RGB", (columns * (wide + 8), rows * (tall + 22)), "white")
    draw = ImageDraw.Draw(made)
    for number, name in enumerate(names):
        for place, folder in enumerate(folders):
            x = ((number % per_row) * len(folders) + place) * (wide + 8)
            y = number // per_row * (tall + 22)
            draw.text((x + 2, y + 2), f"{'before ' if before and not place else ''}{name}"[: wide // 6], fill="black")
            for half, scheme in enumerate(SCHEMES):
                file = folder / f"{name}-{width}-{scheme}.png"
                if file.exists():
                    shown = Image.open(file).convert("RGB")
                    shown = shown.crop((0, 0, shown.width, min(shown.height, shown.width * tall // wide)))
                    shown = ImageOps.contain(shown, (wide, tall))
                    part = shown.crop((wide * half // 2, 0, wide * (half + 1) // 2, shown.height))
                    made.paste(part, (x + wide * half // 2, y + 18))
    made.save(out, quality=45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pets", type=Path)
    parser.add_argument("what", choices=("make", "shoot", "sheet"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--before", type=Path, default=None)
    args = parser.parse_args()
    if args.what == "sheet":
        sheet(*args.folders, width=args.width, before=args.before)
        return
    work, *to = (folder.resolve() for folder in args.folders)
    pets = args.pets.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    make(pets, work) if args.what == "make" else shoot(work, to[0])


if __name__ == "__main__":
    main()
