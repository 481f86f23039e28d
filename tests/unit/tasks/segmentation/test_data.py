import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.data.check import check_data
from saccade.data.framing import Framing, unfit
from saccade.data.image import BadSample
from saccade.data.open import open_data
from saccade.settings import DataConfig, ModelConfig
from saccade.tasks.opening import choose_task, open_samples
from saccade.tasks.segmentation.data import make_targets
from support.mask_sets import mask_of, opened
from support.masks import COLOURS, make_masks, make_pair, save_mask


def test_folder_of_images_and_masks_is_known_by_its_layout(tmp_path):
    choice, data = open_samples(None, DataConfig(path=str(make_masks(tmp_path / "set"))))
    assert choice.kind.name == "segment"
    assert (len(data.train), len(data.val)) == (6, 2)
    assert data.outputs == ("class 0", "class 1", "class 2")
    assert (mask_of(data.train) == make_pair(0)[1]).all()
    assert any("class" in note and "values" in note for note in data.notes)


def test_file_of_classes_names_values_and_255_is_ignored(tmp_path):
    root = make_masks(tmp_path / "set", values=(3, 7, 255))
    (root / "classes.csv").write_text("name,value\nground,3\nsquare,7\n")
    data = opened(root)
    assert data.outputs == ("ground", "square")
    truth = make_pair(0)[1]
    assert (mask_of(data.train) == np.array([0, 1, -1])[truth]).all()


def test_palette_masks_are_read_by_index_and_by_colour(tmp_path):
    root = make_masks(tmp_path / "set")
    for file in (root / "masks").rglob("*.png"):
        image = Image.fromarray(np.array(Image.open(file)))
        image.putpalette([*COLOURS.ravel().tolist()])
        image.save(file)
    truth = make_pair(0)[1]
    assert (mask_of(opened(root).train) == truth).all()
    names = dict(zip("abc", COLOURS.tolist(), strict=True))
    (root / "classes.json").write_text(json.dumps({"c": names["c"], "a": names["a"], "b": names["b"]}))
    data = opened(root)
    assert data.outputs == ("c", "a", "b")
    assert (mask_of(data.train) == np.array([1, 2, 0])[truth]).all()


def test_colour_masks_without_a_map_are_refused_with_what_to_add(tmp_path):
    root = make_masks(tmp_path / "set")
    for file in (root / "masks").rglob("*.png"):
        Image.fromarray(COLOURS[np.array(Image.open(file))]).save(file)
    with pytest.raises(ValueError, match=r"in colour, but no class file says what the colours mean; add classes\.txt"):
        opened(root)


def test_mask_of_another_size_is_a_bad_sample_that_is_named(tmp_path):
    root = make_masks(tmp_path / "set")
    save_mask(root / "masks" / "train" / "3.png", np.zeros((16, 20), np.uint8))
    data = opened(root)
    encode = choose_task("segment").kind.codec(_spec(data)).encoder()
    with pytest.raises(BadSample, match="its mask is 20 x 16 pixels, but the image is 40 x 32"):
        encode(data.train.sample(3))
    report = check_data(str(root))
    assert not report.ok
    assert report.counts()["mask"] == 1


def test_unknown_values_are_named_with_those_that_are_known(tmp_path):
    root = make_masks(tmp_path / "set")
    (root / "classes.txt").write_text("ground\nsquare\n")
    data = opened(root)
    with pytest.raises(BadSample, match=r"values that belong to no class: 2; known values are 0 ground, 1 square"):
        data.train.sample(0)
    assert check_data(str(root)).counts()["mask"] == 8


def test_images_without_mask_are_named_or_refused(tmp_path):
    root = make_masks(tmp_path / "set", train=12)
    (root / "masks" / "train" / "5.png").unlink()
    data = opened(root)
    assert len(data.train) == 11
    assert any("5.png" in note and "no mask" in note for note in data.notes)
    assert any(finding.name.endswith("5.png") for finding in check_data(str(root)).findings)
    for number in range(4):
        (root / "masks" / "train" / f"{number}.png").unlink()
    with pytest.raises(FileNotFoundError, match="5 of 12 images of the split train have no mask"):
        opened(root)


def test_masks_of_sixteen_bits_keep_their_values(tmp_path):
    root = make_masks(tmp_path / "set")
    for file in (root / "masks").rglob("*.png"):
        Image.fromarray(np.array([0, 300, 1000], np.uint16)[np.array(Image.open(file))]).save(file)
    data = opened(root)
    assert data.outputs == ("class 0", "class 300", "class 1000")
    assert (mask_of(data.train) == make_pair(0)[1]).all()


def test_class_that_no_mask_has_is_told(tmp_path):
    root = make_masks(tmp_path / "set")
    (root / "classes.txt").write_text("ground\nsquare\nband\nnothing\n")
    data = opened(root)
    spec = _spec(data)
    task = choose_task("segment")
    task.complete_spec(spec, data, ModelConfig())
    assert any("'nothing'" in note for note in spec.notes)
    report = check_data(str(root))
    assert report.counted == "pixels"
    assert report.classes["nothing"] == 0
    assert report.classes["band"] == 6 * 40 * 6
    assert "nothing" in report.small_classes


def test_class_that_is_not_validated_is_told(tmp_path):
    root = make_masks(tmp_path / "set")
    (root / "classes.txt").write_text("ground\nsquare\nband\nnothing\n")
    for file in (root / "masks" / "val").iterdir():
        mask = np.array(Image.open(file))
        save_mask(file, np.where(mask == 2, 0, mask).astype(np.uint8))
    data = opened(root)
    spec = _spec(data)
    task = choose_task("segment")
    task.complete_spec(spec, data, ModelConfig())
    assert [note.partition(";")[0] for note in spec.notes] == [
        "no pixel of the training masks has the class 'nothing'",
        "no pixel of the validation masks has the class 'band'",
    ]


def test_mask_of_which_nothing_counts_is_found(tmp_path):
    root = make_masks(tmp_path / "set")
    save_mask(root / "masks" / "train" / "1.png", np.full((32, 40), 255, np.uint8))
    found = [finding for finding in check_data(str(root)).findings if finding.kind == "mask"]
    assert [finding.name for finding in found] == ["masks/train/1.png"]
    assert "all pixels of its mask are ignored" in found[0].reason


def test_masks_with_smoothed_edges_are_not_taken_for_hundreds_of_classes(tmp_path):
    root = make_masks(tmp_path / "set", values=(0, 120, 240))
    for file in (root / "masks").rglob("*.png"):
        Image.open(file).resize((20, 16), Image.Resampling.BICUBIC).resize((40, 32)).save(file)
    with pytest.raises(ValueError, match=r"different values from 0 to \d+, too many .* smoothed .* add classes.txt"):
        opened(root)


def test_mask_without_image_is_told(tmp_path):
    root = make_masks(tmp_path / "set")
    save_mask(root / "masks" / "train" / "stray.png", np.full((4, 4), 99, np.uint8))
    data = opened(root)
    assert data.outputs == ("class 0", "class 1", "class 2")
    assert any("1 mask not used" in note and "stray.png" in note for note in data.notes)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "1", "F", "I;16"])
def test_masks_of_other_modes_keep_their_values(tmp_path, mode):
    root = make_masks(tmp_path / "set")
    for file in list((root / "masks").rglob("*.png")):
        mask = np.array(Image.open(file))
        made = {
            "RGBA": lambda m: np.stack([m, m, m, np.where(m, 255, 0).astype(np.uint8)], -1),
            "LA": lambda m: np.stack([m, np.full_like(m, 7)], -1),
            "1": lambda m: m == 1,
            "F": lambda m: m.astype(np.float32),
            "I;16": lambda m: m.astype(np.uint16),
        }[mode](mask)
        file.unlink()
        Image.fromarray(made).save(file.with_suffix(".tif" if mode == "F" else ".png"))
    truth = make_pair(0)[1]
    assert (mask_of(opened(root).train) == (truth == 1 if mode == "1" else truth)).all()


def test_names_in_capitals_and_masks_with_a_suffix_are_matched(tmp_path):
    root = make_masks(tmp_path / "set")
    for file in list((root / "images").rglob("*.png")):
        Image.open(file).save(file.with_suffix(".JPG"), format="JPEG")
        file.unlink()
    for number, file in enumerate(sorted((root / "masks").rglob("*.png"))):
        file.rename(file.with_name(file.stem + ("_mask", "_labels")[number % 2] + ".PNG"))
    data = opened(root)
    assert (len(data.train), len(data.val)) == (6, 2)
    assert (mask_of(data.train, 3) == make_pair(3)[1]).all()


def test_images_of_one_pixel_are_fitted_in(tmp_path):
    root = make_masks(tmp_path / "set")
    Image.fromarray(np.full((1, 1, 3), 9, np.uint8)).save(root / "images" / "train" / "0.png")
    save_mask(root / "masks" / "train" / "0.png", np.ones((1, 1), np.uint8))
    data = opened(root)
    sample = choose_task("segment").kind.codec(_spec(data)).encoder()(data.train.sample(0))
    assert (sample["mask"] == 1).all()


def test_jpeg_masks_are_refused(tmp_path):
    root = make_masks(tmp_path / "set")
    (root / "classes.txt").write_text("ground\nsquare\nband\n")
    file = root / "masks" / "train" / "0.png"
    Image.open(file).save(file, format="JPEG")
    with pytest.raises(BadSample, match="does not preserve the values of a mask"):
        opened(root).train.sample(0)


def test_image_that_is_fitted_in_comes_back_at_its_own_size():
    image, mask = make_pair(1, (61, 33))
    framing = Framing(61, fit=True)
    box = framing.box(33, 61)
    square = framing.mask(mask, box)
    assert square.shape == (61, 61)
    assert (square[:14] == -1).all()
    assert (unfit(square, (33, 61)) == mask).all()
    assert (framing.image(image, box).permute(1, 2, 0).numpy()[14:47] == image).all()
    corners = framing.boxes(np.array([[0, 0, 61, 33]]), box, (33, 61))
    assert np.allclose(corners, [[0, 14, 61, 47]])


def _spec(data):
    from saccade.data.spec import InputSpec

    return InputSpec(data.outputs, 3, 48, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True})


def test_classification_folder_is_not_taken_for_masks(tmp_path):
    for name in ("cat", "dog"):
        for number in range(3):
            path = tmp_path / name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((20, 20, 3), number * 20, np.uint8)).save(path)
    assert open_data(str(tmp_path)).task == "classify"
    with pytest.raises(ValueError, match="set for classify"):
        opened(tmp_path)
    assert Path(tmp_path).exists()


def test_the_thinnest_class_is_measured_by_area_and_border(tmp_path):
    mask = np.zeros((10, 10), np.uint8)
    mask[:, 4:6] = 1  # area 20, border 20: 2 pixels; the ground has 80 and 20
    save_mask(tmp_path / "0.png", mask)
    targets = make_targets(tmp_path, ["0.png"], classes=None, given=["ground", "wire"])
    assert targets.thinnest() == 2.0
    save_mask(tmp_path / "0.png", np.zeros((10, 10), np.uint8))
    assert targets.thinnest() is None


def test_stray_pixels_are_no_thin_class(tmp_path):
    mask = np.zeros((200, 200), np.uint8)
    mask[50:100, 50:100] = 1
    mask[10, 10] = 2
    save_mask(tmp_path / "0.png", mask)
    targets = make_targets(tmp_path, ["0.png"], classes=None, given=["ground", "block", "stray"])
    assert targets.thinnest() == 2 * 50 * 50 / 200
    mask[10, 10:18] = 2  # a wire of one pixel
    save_mask(tmp_path / "0.png", mask)
    assert targets.thinnest() == pytest.approx(2 * 8 / 18)
