"""The smallest form of a command: one epoch of a few small images."""

import re

from saccade.settings.recipes import read_recipe


def smallest(words: list[str]) -> list[str]:
    """Return a command with what makes it short behind it, or in the place of its own lengths and sizes."""
    verb, words = words[0], list(words)
    told = " ".join(words)
    counts = {"--seeds": "2", "--folds": "2", "--limit": "8", "--tune": "30s"}
    if verb != "explain":
        counts |= {"--epochs": "1", "--img-size": "64"}
    if verb == "tune":
        counts |= {"--budget": "40s", "--epochs": "2"}
    for flag, value in counts.items():
        if flag in words and words[-1] != flag and not words[words.index(flag) + 1].startswith("-"):
            words[words.index(flag) + 1] = value
        elif flag in words:
            words.insert(words.index(flag) + 1, value)
    words = [re.sub(r"\bcrop=\d+", "crop=64", word) for word in words]  # of masks: a step at 512 takes a minute
    more: list[str] = []
    if verb in ("train", "tune", "compare") and "--resume" not in words:
        few = "--task detect" in told
        if few and "model.head" not in told and "path/to/" not in told:
            recipe = words[words.index("--recipe") + 1] if "--recipe" in words else "detect"
            head = read_recipe(recipe)["model"]["head"].partition(":")[0]
            # It looks at hundreds of places of each image by wide layers, however small the image is.
            more += ["--set", f"model.head={head}:hidden=32,sampled=16,proposals=16"]
        more += ["--device", "cpu", "--set", f"data.train_limit={4 if few else 16}"]
        more += ["--set", "data.workers=0"] if verb == "compare" else ["--workers", "0"]
        more += [] if "--epochs" in words else ["--epochs", "2" if verb == "tune" else "1"]
        textual = re.search(r"--task text|--recipe text", told)
        side = "64" if words[1:] and not words[1].startswith("-") else "32"  # of the embedded set, all is validated
        more += [] if "--img-size" in words or textual else ["--img-size", side]
        more += [] if "--batch-size" in words else ["--set", f"optim.batch_size={4 if few else 8}"]
    if verb == "compare" and "--seeds" not in words:
        more += ["--seeds", "2"]
    if verb == "evaluate":
        more += [] if "--limit" in words or "--folds" in words else ["--limit", "8"]
        more += ["--steps", "1", "--restarts", "1"] if "--robust" in words else []
    if verb == "export":
        more += ["--limit", "4"]
    if verb == "benchmark":
        more += ["--batch-size", "1", "--img-size", "64"]
    return [*words, *more]
