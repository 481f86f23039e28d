"""Every kind of page that saccade writes, made by runs of seconds, and what a browser can tell about one."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import saccade
from support.trainings import TINY

CLASSES = (
    "ant",
    "bee",
    "a bird of the woods, seen from below, its wings spread wide",
    "cat",
    "Salamandra_salamandra_salamandra",
    "elk",
)
GLNET = {**TINY, "depths": [2, 1]}  # two blocks with slots, so that there are layers to choose from
VIT = {"embed_dim": 16, "depth": 3, "num_heads": 2, "patch_size": 8}
SETTINGS: dict[str, Any] = {
    "data.img_size": 32,
    "data.workers": 0,
    "optim.batch_size": 16,
    "optim.lr": 0.01,
    "engine.threads": 1,
    "engine.device": "cpu",
    "keep.every_steps": None,
    "schedule.epochs": 2,
}


def write_images(root: Path) -> Path:
    """Write a set whose classes differ in colour and in where a bar is, with names that are hard to lay out."""
    for split, count in (("train", 60), ("val", 36)):
        for number in range(count):
            label = number % len(CLASSES)
            pixels = np.random.default_rng((number, len(split))).integers(0, 120, (36, 40, 3), dtype=np.uint8)
            pixels[..., label % 3] += 100
            pixels[6 * label : 6 * label + 5] = 220
            file = root / split / CLASSES[label] / f"{number:03d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return root


def write_pages(root: Path) -> dict[str, Path]:
    """Train, compare, evaluate and explain; return the pages by what they are."""
    data = write_images(root / "set")
    image, another = sorted((data / "val").rglob("*.png"))[::20][:2]
    namesake = root / image.name  # two images of one name on a page have to be told apart
    namesake.write_bytes(another.read_bytes())
    glnet, vit = root / "glnet", root / "vit"
    common: dict[str, Any] = {"quiet": True}
    saccade.train(str(data), model="glnet_nano", out=glnet, settings={**SETTINGS, "model.options": GLNET}, **common)
    tiny = {**SETTINGS, "model.options": VIT}
    saccade.train(str(data), model="vit_tiny", plugins=["broadcast:scale=true"], out=vit, settings=tiny, **common)
    saccade.compare(
        str(data),
        arms=["base", "broadcast:scale=true", "slow:=lr=0.00001"],
        seeds=2,
        model="vit_tiny",
        out=root / "comparison",
        settings=tiny,
        **common,
    )
    hard = {"robust": True, "limit": 12, "steps": 2, "restarts": 1, "resamples": 200}
    saccade.evaluate([glnet, vit], out=root / "evaluation", **hard, **common)
    return {
        "training": glnet / "report.html",
        "comparison": root / "comparison" / "report.html",
        "evaluation": root / "evaluation" / "evaluation.html",
        "slots": saccade.explain(glnet, image).save(root / "slots"),
        "scaling": saccade.explain(vit, image).save(root / "scaling"),
        "pictures": saccade.explain(vit, [image, namesake], against=glnet).save(root / "pictures"),
    }


def beside(page: Path, name: str) -> Any:
    """Return what a JSON file beside a page holds."""
    return json.loads((page.parent / name).read_text(encoding="utf-8"))


FAULTS = """
const all = (css) => [...document.querySelectorAll(css)], wide = document.documentElement.clientWidth, found = [];
for (const image of all('img'))
  if (!image.complete || !image.naturalWidth) found.push('no image: ' + image.alt);
if (document.documentElement.scrollWidth > wide)
  found.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${wide}`);
for (const element of all('main *')) {
  const box = element.getBoundingClientRect(), own = element.closest('.scroll');
  if (box.width && (!own || own === element) && (box.left < 0 || box.right > wide + 1))
    found.push(`outside of the window: ${element.outerHTML.slice(0, 120)}`);
}
let level = 0;
for (const heading of all('h1, h2, h3, h4, h5, h6')) {
  const next = Number(heading.tagName[1]);
  if (next > level + 1 || (next === 1) !== (level === 0)) found.push('heading out of order: ' + heading.textContent);
  level = next;
}
for (const link of all('a'))
  if (!document.getElementById(link.hash.slice(1))) found.push('a link that leads nowhere: ' + link.href);
for (const entry of performance.getEntriesByType('resource'))
  if (!entry.name.startsWith('data:')) found.push('asked for ' + entry.name);
return found;
"""


def faults(page: Any) -> list[str]:
    """Return what is wrong with an open page whose folds are open: images, width, headings, links, requests."""
    page.browser.execute_script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    return [*page.browser.execute_script(FAULTS), *page.console()]


def rows(page: Any, caption: str) -> list[list[str]]:
    """Return the texts that are seen in the body of the table whose caption begins so."""
    return page.browser.execute_script(
        "const found = [...document.querySelectorAll('table')].find((one) => one.caption.innerText.startsWith("
        "arguments[0])); return [...found.tBodies[0].rows].map((row) => [...row.cells].map((c) => c.innerText.trim()))",
        caption,
    )


def pdf(page: Any) -> bytes:
    """Return an open page as it is printed."""
    printed = page.browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    return base64.b64decode(printed["data"])
