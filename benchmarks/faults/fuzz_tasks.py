"""Kinds of cases that `fuzz.py` makes of what single tasks read: masks and their classes, texts, labels of places."""

import contextlib
import csv
import io
import json
import shutil

from benchmarks.faults.mutate import as_text, mutate, twist


def write_changed(path, draw, *, structured=0.6):
    """Change a file: the values of its JSON, if it is any, or its bytes."""
    if path.suffix == ".json" and draw.random() < structured:
        path.write_text(as_text(twist(json.loads(path.read_text()), draw), draw))
    else:
        path.write_bytes(mutate(path.read_bytes(), draw))


def write_rows(path, rows, draw):
    """Write a table with some of its cells and rows changed, and perhaps its bytes."""
    twisted = twist(rows, draw)
    rows = [row if isinstance(row, list) else [row] for row in twisted] if isinstance(twisted, list) else []
    text = io.StringIO()
    csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([list(map(str, row)) for row in rows])
    data = text.getvalue().encode(errors="surrogatepass")
    path.write_bytes(mutate(data, draw) if draw.random() < 0.4 else data)


def read_all(data):
    """Read every image of a set; bad ones are what is expected of some."""
    from saccade.data.image import BadSample
    from saccade.data.source import Stream

    for part in (data.train, data.val):
        if isinstance(part, Stream):
            for _ in part.samples(seed=0, epoch=0, rank=0, world=1, worker=0, workers=1):
                pass
            continue
        for index in range(min(len(part), 20)):
            with contextlib.suppress(BadSample):
                part.read(index)


class Masks:
    """A folder of images and masks with a file of classes, COCO's panoptic list, or a list with a column of masks."""

    def __init__(self, folder):
        import numpy as np

        from support.masks import make_masks, save_mask

        self.folder = folder
        self.own = make_masks(folder / "own", train=3, val=1, size=(40, 32))
        for name, told in (
            ("classes.json", {"a": 0, "b": 1, "c": 2}),
            ("colormap.json", {"a": [0, 0, 0], "b": [1, 1, 1]}),
        ):
            (folder / name).write_text(json.dumps(told))
        (folder / "classes.csv").write_text("name,value\na,0\nb,1\nc,2\n")
        (folder / "class_dict.csv").write_text("name,r,g,b\na,0,0,0\nb,1,1,1\nc,2,2,2\n")
        (folder / "classes.txt").write_text("a\nb\nc\n")
        (folder / "labelmap.txt").write_text("a:0,0,0::\nb:1,1,1::\nc:2,2,2::\n")
        self.files = [path for path in folder.iterdir() if path.is_file()]
        coco = folder / "coco"
        for part in ("train", "val"):
            (coco / f"{part}2017").mkdir(parents=True)
            told = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "a"}, {"id": 9, "name": "b"}]}
            for number in range(2):
                shutil.copy(self.own / "images" / "train" / f"{number}.png", coco / f"{part}2017" / f"{number}.png")
                pixels = np.zeros((32, 40, 3), np.uint8)
                pixels[:12], pixels[12:] = (1, 0, 0), (2, 0, 0)
                save_mask(coco / "annotations" / f"panoptic_{part}2017" / f"{number}.png", pixels)
                told["images"].append({"id": number, "file_name": f"{number}.png"})
                segments = [{"id": 1, "category_id": 7}, {"id": 2, "category_id": 9}]
                told["annotations"].append(
                    {"image_id": number, "file_name": f"{number}.png", "segments_info": segments}
                )
            (coco / "annotations" / f"panoptic_{part}2017.json").write_text(json.dumps(told))

    def __call__(self, draw):
        from saccade.settings import DataConfig
        from saccade.tasks.opening import open_samples

        kind = draw.choice(("own", "own", "coco", "coco", "list"))
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        if kind == "list":
            shutil.copytree(self.own, place)
            rows = [["path", "mask", "split"]]
            for part in ("train", "val"):
                rows += [
                    [str(f.relative_to(place)), f"masks/{part}/{f.name}", part]
                    for f in (place / "images" / part).iterdir()
                ]
            write_rows(place / "list.csv", rows, draw)
            place = place / "list.csv"
        else:
            shutil.copytree(self.folder / kind, place)
            if kind == "own" and draw.random() < 0.7:
                shutil.copy(file := draw.choice(self.files), place)
                write_changed(place / file.name, draw)
            if kind == "coco" and draw.random() < 0.8:
                write_changed(draw.choice(sorted(place.glob("annotations/*.json"))), draw)
            for _ in range(draw.choice((0, 1, 1, 4))):
                write_changed(draw.choice(sorted(place.rglob("*.png"))), draw)
        read_all(open_samples("segment", DataConfig(path=str(place), val_share=0.3, bad_limit=0.9))[1])


class Texts:
    """A table of texts or questions, a stranger's tokenizer or configuration, or a model that reads texts."""

    def __init__(self, folder):
        import numpy as np
        import pyarrow
        import pyarrow.parquet as parquet
        from PIL import Image

        import saccade
        from support.texts import make_model, sentences, write_cola

        self.folder, self.host = folder, make_model(folder / "host")
        run = saccade.train(
            str(write_cola(folder / "cola", train=8, dev=4)), task="text", model=str(self.host), epochs=1, batch_size=8,
            device="cpu", out=folder / "run", quiet=True,
        )  # fmt: skip
        self.weights = (run.path / "model.safetensors").read_bytes()
        length = int.from_bytes(self.weights[:8], "little")
        self.header = json.loads(self.weights[8 : 8 + length])
        self.body = self.weights[8 + length :]
        self.rows = [["sentence", "label", "split"]]
        self.rows += [[*one, "train" if n < 9 else "val"] for n, one in enumerate(sentences(12))]
        table = {name: [row[place] for row in self.rows[1:]] for place, name in enumerate(self.rows[0])}
        file = io.BytesIO()
        parquet.write_table(pyarrow.table(table), file)
        self.parquet = file.getvalue()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "a.png")
        self.questions = [["image", "question", "answer", "split"]]
        self.questions += [["a.png", f"is it {n}", ("yes|yes|no", "no=1|yes=0.3")[n % 2], "train"] for n in range(6)]

    def __call__(self, draw):
        kinds = (*(self.table,) * 3, *(self.tokenizer,) * 2, self.asked, self.opened, self.model)
        draw.choice(kinds)(draw)

    def table(self, draw):
        from saccade.settings import DataConfig
        from saccade.tasks.opening import open_samples

        path = self.folder / f"table.{draw.choice(('tsv', 'csv', 'jsonl', 'parquet'))}"
        if path.suffix == ".parquet":
            path.write_bytes(mutate(self.parquet, draw))
        elif path.suffix == ".jsonl":
            lines = [dict(zip(self.rows[0], row, strict=True)) for row in self.rows[1:]]
            text = "\n".join(as_text(twist(line, draw) if draw.random() < 0.2 else line, draw) for line in lines)
            path.write_bytes(mutate(text.encode(), draw) if draw.random() < 0.4 else text.encode())
        else:
            write_rows(path, self.rows, draw)
        data = open_samples("text", DataConfig(path=str(path), val_share=0.3))[1]
        for part in (data.train, data.val):
            for index in range(len(part)):
                part.sample(index)

    def asked(self, draw):
        from saccade.settings import DataConfig
        from saccade.tasks.opening import open_samples

        path = self.folder / "questions.csv"
        write_rows(path, self.questions, draw)
        read_all(open_samples("vqa", DataConfig(path=str(path), val_share=0.3))[1])

    def tokenizer(self, draw):
        from saccade.tasks.text.tokens import Reading

        told = json.loads((self.host / "tokenizer.json").read_text())
        told["normalizer"] = draw.choice(NORMALIZERS)
        text = (
            as_text(twist(told, draw), draw)
            if draw.random() < 0.8
            else mutate(json.dumps(told).encode(), draw).decode(errors="replace")
        )
        reading = Reading(text, 0, True, 32, draw.random() < 0.5, draw.random() < 0.5, False)
        reading.encode([("the film is very good",), ("a" * 40 + "!",), ("\u2028 👁 ﷺ",)])

    def opened(self, draw):
        from saccade.tasks.text.hosted import describe_tokenizer

        from saccade.tasks.huggingface import describe_host

        place = self.folder / "strange"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.host, place, ignore=shutil.ignore_patterns("*.safetensors"))
        write_changed(draw.choice(sorted(place.glob("*.json"))), draw)
        host = describe_host(str(place), ("a", "b"), kind="SEQUENCE_CLASSIFICATION")
        with contextlib.suppress(ImportError):
            describe_tokenizer(str(place), host)

    def model(self, draw):
        from saccade.building.build import load_model
        from saccade.tasks.text.tokens import Reading

        about = twist(json.loads(self.header["__metadata__"]["saccade"]), draw)
        metadata = self.header["__metadata__"] | {"saccade": as_text(about, draw)}
        text = json.dumps(self.header | {"__metadata__": metadata}).encode()
        path = self.folder / "model.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + self.body)
        _, spec = load_model(path)
        if spec.task == "text":
            Reading.of(spec).encode([("the film is good",)])


NORMALIZERS = (
    None,
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
     "lowercase": True},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
    {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"},
    {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Prepend", "prepend": "\u2581"}]},
)  # fmt: skip


class Labels:
    """A teacher's labels of places: their list and their files."""

    def __init__(self, folder):
        import torch

        from saccade.tasks import save_label_maps

        self.folder = folder
        maps = [(f"{n}.png", torch.rand(3, 2, 2).softmax(0)) for n in range(4)]
        save_label_maps(folder / "sound", maps, top=2, shard_size=2, classes=("a", "b", "c"))

    def __call__(self, draw):
        from saccade.tasks import LabelMaps

        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "sound", place)
        write_changed(draw.choice((place / "labels.json", *sorted(place.glob("*.safetensors")))), draw)
        maps = LabelMaps(place).checked(("a", "b", "c"))
        for name in maps:
            maps[name]
