"""What a stranger's tokenizer, model folder, label maps and lists of masks or texts may not do."""

import builtins
import json
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from saccade.data.open import open_data
from saccade.plugins import from_pretrained
from saccade.settings import ConfigError, DataConfig
from saccade.tasks import LabelMaps, save_label_maps
from saccade.tasks.huggingface import build_host, describe_host
from saccade.tasks.opening import open_samples
from saccade.tasks.segmentation.values import ClassMap, read_map
from saccade.tasks.text.hosts import describe_tokenizer
from saccade.tasks.text.tables import read_columns
from saccade.tasks.text.tokens import Reading, TextError, open_tokenizer
from support.masks import make_masks
from support.texts import make_model, make_tokenizer

KIND = "SEQUENCE_CLASSIFICATION"


def described(**parts):
    return json.loads(make_tokenizer().backend_tokenizer.to_str()) | parts


def encode(told, text="aaaa good"):
    return Reading(json.dumps(told), 0, True, 32, False, True, False).encode([(text,)])


def replace(content, pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


# Tokenizers


def test_replacements_that_double_a_text_again_and_again_are_refused():
    told = described(normalizer={"type": "Sequence", "normalizers": [replace("aa", {"String": "a"})] * 40})
    with pytest.raises(ValueError, match="more than 1024 times as long"):
        open_tokenizer(json.dumps(told))


def test_stacked_byte_levels_are_refused():
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    told = described(pre_tokenizer={"type": "Sequence", "pretokenizers": [level] * 40})
    with pytest.raises(ValueError, match="more than 1024 times as long"):
        open_tokenizer(json.dumps(told))


def test_normalizers_of_published_tokenizers_are_taken():
    parts = [replace('"', {"String": "``"}), replace('"', {"String": "''"}), {"type": "NFKD"}, {"type": "StripAccents"}]
    parts += [{"type": "Lowercase"}, replace(" ", {"Regex": " {2,}"}), {"type": "Prepend", "prepend": "▁"}]
    assert len(encode(described(normalizer={"type": "Sequence", "normalizers": parts})))


def test_a_pattern_without_end_is_an_error_and_no_panic(capfd):
    with pytest.raises(TextError, match="the tokenizer fails on these texts"):
        encode(described(normalizer=replace("b", {"Regex": "(a+)+$"})), "a" * 40 + "!")
    capfd.readouterr()  # the library prints where it panicked


@pytest.mark.parametrize(
    "vocabulary", [{"[UNK]": 2**32 - 1, "[CLS]": 2, "[SEP]": 3}, {"good": 0, "[CLS]": 2, "[SEP]": 3}]
)
def test_tokens_no_model_has_are_refused(vocabulary):
    with pytest.raises(TextError, match="tokenizer"):
        encode(described(model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}))


# Folders of Hugging Face


@pytest.fixture
def host(tmp_path, monkeypatch):
    def ask(*_):
        raise AssertionError("a stranger's folder asks the user to run its code")

    monkeypatch.setattr(builtins, "input", ask)
    return make_model(tmp_path / "host")


def change(folder, name, **values):
    told = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps(told))


@pytest.mark.parametrize("kind", ["bert", "strange"])
def test_code_beside_a_model_is_not_run_and_nobody_is_asked_to(host, tmp_path, kind):
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\nfrom transformers import BertConfig\nclass C(BertConfig):\n    pass\n"
    (host / "evil.py").write_text(code)
    parts = {"AutoConfig": "evil.C", "AutoTokenizer": ["evil.C", "evil.C"], "AutoModel": "evil.C"}
    change(host, "config.json", model_type=kind, auto_map=parts)
    change(host, "tokenizer_config.json", auto_map=parts, tokenizer_class="Strange")
    if kind == "strange":
        with pytest.raises(ConfigError, match="cannot be opened"):
            describe_host(str(host), ("a", "b"), kind=KIND)
        with pytest.raises(ValueError, match="custom code"):
            from_pretrained(host)
    else:
        describe_tokenizer(str(host), describe_host(str(host), ("a", "b"), kind=KIND))
    assert not marker.exists()


class Evil:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_pickled_weights_run_nothing(host, tmp_path):
    from saccade.data.spec import InputSpec

    (host / "model.safetensors").unlink()
    (host / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Evil(tmp_path / "ran")}))
    spec = InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3, task="text")
    spec.extra["host"] = describe_host(str(host), ("a", "b"), kind=KIND)
    with pytest.raises(ConfigError, match="are a pickle"):
        build_host(spec, kind=KIND, weights=str(host))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("values", [{"num_hidden_layers": "x"}, {"max_position_embeddings": [1]}])
def test_a_configuration_of_wrong_values_is_refused_in_words(host, values):
    change(host, "config.json", **values)
    with pytest.raises(ConfigError, match="cannot be opened"):
        describe_host(str(host), ("a", "b"), kind=KIND)


def test_a_tokenizer_without_a_number_for_its_length_is_refused(host):
    change(host, "tokenizer_config.json", model_max_length=[32])
    with pytest.raises(ConfigError, match="both must be whole numbers"):
        describe_tokenizer(str(host), describe_host(str(host), ("a", "b"), kind=KIND))


# Labels of places


@pytest.fixture
def maps(tmp_path):
    some = [(f"{n}.png", torch.rand(3, 2, 2).softmax(0)) for n in range(2)]
    save_label_maps(tmp_path / "maps", some, top=2, classes=("a", "b", "c"))
    return tmp_path / "maps"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_classes", 10**12),
        ("num_classes", "3"),
        ("shards", ["../labels.safetensors"]),
        ("shards", 3),
        ("values", "x"),
        ("images", None),
        ("classes", [1, 2, 3]),
    ],
)
def test_a_list_of_labels_with_wrong_values_is_refused(maps, key, value):
    change(maps, "labels.json", **{key: value})
    with pytest.raises(OSError, match=r"labels\.json does not list"):
        LabelMaps(maps)


def test_deep_lists_pipes_and_tensors_of_other_shapes_are_no_labels(maps):
    shard = next(maps.glob("*.safetensors"))
    tensors = load_file(shard)
    save_file(tensors | {"index": np.full((2, 2, 2, 2), -1)}, shard, {"names": '["0.png", "1.png"]'})
    with pytest.raises(OSError, match="contains the class -1, but there are 3 classes"):
        LabelMaps(maps)["0.png"]
    for wrong, names in ((tensors, "[" * 100_000), (tensors, "[1, 2]"), ({"index": tensors["index"]}, "[]")):
        save_file(wrong, shard, {"names": names})
        with pytest.raises(OSError, match="does not contain label maps"):
            LabelMaps(maps)
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(OSError, match="a pipe"):
        LabelMaps(maps)
    (maps / "labels.json").write_text("[" * 100_000)
    with pytest.raises(OSError, match="damaged"):
        LabelMaps(maps)


# Masks and lists


def test_a_million_classes_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="at most 4096"):
        ClassMap(tuple(map(str, range(10**6))), tuple(range(10**6)))
    (tmp_path / "classes.txt").write_text("x\n" * 3_000_000)
    with pytest.raises(ValueError, match="at most 4194304 are read"):
        read_map(tmp_path / "classes.txt")


def test_a_class_file_with_a_cell_without_end_is_refused_in_words(tmp_path):
    (tmp_path / "texts.csv").write_text("sentence,label\n" + "x" * 200_000 + ",1\n")
    assert len(read_columns(tmp_path / "texts.csv")["sentence"][0]) == 200_000  # a text may be long
    (tmp_path / "classes.csv").write_text("name,value\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(ValueError, match="is not a valid class file"):
        read_map(tmp_path / "classes.csv")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("categories", [{"id": float("inf"), "name": "a"}]),
        ("categories", [{"id": 1}]),
        ("annotations", [{"file_name": "x" * 5000}]),
    ],
)
def test_wrong_values_in_a_panoptic_list_are_refused_in_words(tmp_path, key, value):
    told = {"categories": [{"id": 1, "name": "a"}], "images": [{"id": 0, "file_name": "0.png"}], "annotations": []}
    (tmp_path / "annotations").mkdir()
    file = tmp_path / "annotations" / "panoptic_train2017.json"
    file.write_text(json.dumps(told | {key: value}))
    with pytest.raises(ValueError, match="not a list of panoptic masks in COCO's format"):
        open_samples("segment", DataConfig(path=str(tmp_path)))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=str(tmp_path)):
        open_samples("segment", DataConfig(path=str(tmp_path)))


def test_names_too_long_for_any_disk_are_missing_files(tmp_path):
    root = make_masks(tmp_path / "set", train=2, val=1)
    long = "x" * 5000
    for name, rows, task in (
        ("masks.csv", f"path,mask\nimages/train/0.png,{long}\nimages/train/1.png,{long}\n", "segment"),
        ("plain.csv", f"path,label\n{long},a\n{long}2,b\n", "classify"),
        ("asked.csv", f"image,question,answer\n{long},is it,yes\n{long},is it,no\n", "vqa"),
    ):
        (root / name).write_text(rows)
        with pytest.raises(FileNotFoundError, match=r"not there|not exist") as caught:
            open_samples(task, DataConfig(path=str(root / name)))
        assert len(str(caught.value)) < 3000


def test_parquet_whose_texts_are_no_utf8_is_damaged(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    bad = arrow.array([b"\xff\xfe", b"ok"]).view(arrow.string())
    parquet.write_table(arrow.table({"path": bad, "text": bad, "label": ["a", "b"]}), tmp_path / "set.parquet")
    with pytest.raises(ValueError, match="is not a Parquet file, or is damaged"):
        open_data(str(tmp_path / "set.parquet"))
    with pytest.raises(ValueError, match="is not a Parquet file, or is damaged"):
        read_columns(tmp_path / "set.parquet")


def test_an_archive_of_a_later_zip_is_refused_in_words(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4), np.uint8), y_train=np.arange(2))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    place = data.index(b"PK\1\2")
    data[place + 6] = 200  # the version that is needed to read it
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match="not a NumPy archive, or is damaged"):
        open_data(str(tmp_path / "a.npz"))
