"""A small model that answers questions about images, and questions for it."""

import csv

import numpy as np
import transformers
from PIL import Image

from support.texts import WORDS, make_tokenizer

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
