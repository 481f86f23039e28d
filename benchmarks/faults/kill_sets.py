"""What `kills.py` trains on and with: data of every kind, a few hundred bytes a sample, and tiny models."""

import json
import sys

VIT = ("vit_tiny_patch16_224", {"depth": 2, "embed_dim": 16, "num_heads": 2, "patch_size": 8})


def source(kind, made):
    """Return where data of a kind lies, as a run is told it."""
    places = {
        "embedded": "embedded", "hub": f"hf:{made / 'published'}", "hub stream": f"hf-stream:{made / 'published'}",
        "list": made / "list.csv", "list in parquet": made / "list.parquet",
        "images in parquet": made / "parquet", "folder": made / "pictures", "npz": made / "set.npz",
        "labels": made / "several" / "labels.csv", "numbers": made / "several" / "numbers.csv",
        "questions": made / "questions" / "questions.csv",
    }  # fmt: skip
    return str(places.get(kind, made / kind))


def make_all(made):
    """Write all data and models, and which modules it took to use them."""
    make_data(made)
    make_models(made)
    (made / "modules.json").write_text(json.dumps(sorted(sys.modules)))


def make_data(made):
    """Write data of every kind, and the models that are not built by name."""
    import numpy as np
    import pyarrow
    import pyarrow.parquet as parquet
    from PIL import Image

    from support.images import write_shard
    from support.lists import write_images, write_list
    from support.masks import make_masks
    from support.trainings import png_folder

    images = png_folder(made / "pictures", train=48, val=12, bad=1)
    files = sorted(images.glob("*/*/*.png"))
    rows = [{"path": str(f.relative_to(made)), "label": f.parent.name, "split": f.parts[-3]} for f in files]
    write_list(made / "list.csv", rows, ("label",))
    parquet.write_table(pyarrow.Table.from_pylist(rows), made / "list.parquet")
    whole = [(f, int(f.parent.name[-1])) for f in files if f.name != "000.png"]
    for split in ("train", "val"):
        part = [(f, label) for f, label in whole if f.parts[-3] == split]
        for shard in range(3):
            some = [(f.stem, f.read_bytes(), str(label)) for f, label in part[shard::3]]
            write_shard(made / "shards" / f"{split}-{shard:03d}.tar", some)
    arrays = {}
    for split in ("train", "val"):
        part = [(np.asarray(Image.open(f).resize((28, 28)).convert("L")), n) for f, n in whole if f.parts[-3] == split]
        arrays[f"x_{split}"] = np.stack([image for image, _ in part])
        arrays[f"y_{split}"] = np.array([label for _, label in part])
    np.savez(made / "set.npz", **arrays)
    (made / "arrays").mkdir()
    for split, name in (("train", "train"), ("val", "t10k")):
        for kind, array in (("images", arrays[f"x_{split}"]), ("labels", arrays[f"y_{split}"].astype(np.uint8))):
            head = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (made / "arrays" / f"{name}-{kind}-idx{array.ndim}-ubyte").write_bytes(head + array.tobytes())
    make_published(made, whole)
    several = write_images(made / "several", train=40, val=12)
    write_list(made / "several" / "labels.csv", several, ("labels",))
    write_list(made / "several" / "numbers.csv", several, ("level",))
    make_masks(made / "masks", train=32, val=6)


def make_published(made, whole):
    """Write images as Hugging Face has them: saved, in Parquet, and as a set by name."""
    import datasets

    datasets.disable_progress_bars()
    label = datasets.ClassLabel(names=["class0", "class1", "class2"])
    features = datasets.Features({"image": datasets.Image(), "label": label})
    sets = datasets.DatasetDict()
    for split in ("train", "val"):
        part = [(f, n) for f, n in whole if f.parts[-3] == split]
        columns = {"image": [{"bytes": f.read_bytes(), "path": None} for f, _ in part], "label": [n for _, n in part]}
        name = {"train": "train", "val": "validation"}[split]
        sets[name] = datasets.Dataset.from_dict(columns, features=features)
    sets.save_to_disk(str(made / "saved"))
    for folder in ("parquet", "published"):
        (made / folder).mkdir()
        for name, part in sets.items():
            for shard in range(3):
                file = made / folder / f"{name}-{shard:05d}-of-00003.parquet"
                part.shard(3, shard, contiguous=True).to_parquet(str(file))


def make_models(made):
    """Write what texts and questions need, a teacher, and its labels of every place."""
    import transformers

    import saccade
    from saccade.training.labelling import write_labels
    from support.texts import SIZE, WORDS, make_model, make_tokenizer, sentences, write_tsv

    make_model(made / "bert")
    make_model(made / "gpt", "gpt")
    transformers.set_seed(0)
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, max_position_embeddings=32, vocab_size=len(WORDS), max_image_length=-1, **SIZE
    )
    transformers.ViltModel(config).save_pretrained(made / "vilt")
    make_tokenizer().save_pretrained(made / "vilt")
    for name, count in (("train", 40), ("dev", 12)):
        write_tsv(made / "texts" / f"{name}.tsv", ("sentence", "label"), sentences(count, seed=len(name)))
    (made / "questions").mkdir()
    files = sorted((made / "several" / "images").iterdir())
    lines = ["image,question,answer,split"]
    for n, file in enumerate(files):
        answer = ("yes|yes|no", "no", "yes=1|no=0.3")[n % 3]
        question, split = f"is the film {'good' if n % 2 else 'bad'}", "val" if n > 39 else "train"
        lines.append(f"../several/images/{file.name},{question},{answer},{split}")
    (made / "questions" / "questions.csv").write_text("\n".join(lines))
    settings = {"model.options": VIT[1], "data.img_size": 32, "data.workers": 0, "engine.device": "cpu"}
    settings["augment.mixup"] = 0.2
    saccade.train(str(made / "pictures"), model=VIT[0], epochs=1, out=made / "teacher", settings=settings, quiet=True)
    write_labels(str(made / "pictures"), teacher=str(made / "teacher"), out=made / "maps", top=2)
