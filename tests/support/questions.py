"""A small model that answers questions about images, and questions for it."""

import csv
import json

import numpy as np
import transformers
from PIL import Image

from support.texts import WORDS, make_tokenizer

TEN = ["yes"] * 7 + ["Yes.", "no", "the maybe"]
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def make_vilt(folder):
    transformers.set_seed(0)
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, max_position_embeddings=32, vocab_size=len(WORDS), max_image_length=-1, **SIZE
    )
    transformers.ViltModel(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def write_questions(folder, rows):
    folder.mkdir(exist_ok=True)
    for name, level in (("dark.png", 30), ("bright.png", 220)):
        Image.fromarray(np.full((24, 40, 3), level, np.uint8)).save(folder / name)
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "question", "answer", "split"), *rows])
    return folder / "questions.csv"


def questions(count):
    for n in range(count):
        bright = n % 2 == 0
        answers = "yes|yes|yes|no" if bright else "no=1|yes=0.3"
        split = "val" if n >= count - 4 else "train"
        yield ("bright.png" if bright else "dark.png"), "is the film bright", answers, split


def write_official(folder, *, places=("train2014", "val2014")):
    """Write two questions about one image for each split, in the layout of the download."""
    for split, place in zip(("train2014", "val2014"), places, strict=True):
        (folder / place).mkdir(parents=True)
        Image.fromarray(np.full((24, 40, 3), 90, np.uint8)).save(folder / place / f"COCO_{split}_000000000042.jpg")
        asked = [
            {"question_id": 42000 + n, "image_id": 42, "question": text}
            for n, text in enumerate(("is it dark", "how many"))
        ]
        answers = [
            {
                "question_id": 42000 + n,
                "image_id": 42,
                "multiple_choice_answer": given[0],
                "answers": [{"answer": one, "answer_confidence": "yes", "answer_id": i} for i, one in enumerate(given)],
            }
            for n, given in enumerate((TEN, ["two"] * 2 + ["2"] + ["many"] * 7))
        ]
        header = {"info": {}, "data_type": "mscoco", "data_subtype": split}
        questions_file = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
        questions_file.write_text(json.dumps({**header, "questions": asked}))
        annotations = {**header, "annotations": answers[::-1]}  # in another order
        (folder / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps(annotations))
    return folder
