"""What of an image a model is shown: its middle, and nothing less than there is need to cut off."""

import itertools

import numpy as np
import pytest
import torch

import saccade
from saccade.data.framing import Framing, middle_box
from saccade.deployment.predictor import open_predictor
from saccade.settings import AugmentConfig
from support.images import class_folders, pixels
from support.training import tiny


def test_an_image_of_the_asked_size_keeps_every_pixel_of_it():
    image = pixels(1, 64, 64)
    framed = Framing(64, shorter=73)(image)
    assert np.array_equal(framed.permute(1, 2, 0).numpy(), image)
    padded = Framing(64, AugmentConfig(crop="pad"), shorter=73)(image)
    assert torch.equal(padded, framed)


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((64, 64), (0, 0, 64, 64)),
        ((64, 100), (18, 0, 82, 64)),  # only what the square does not hold
        ((48, 60), (6, 0, 54, 48)),  # smaller than asked for: enlarged, but not cut as well
        ((68, 70), (3, 2, 67, 66)),  # four rows to spare: cut, not resampled
        ((73, 73), (4.5, 4.5, 68.5, 68.5)),
        ((146, 200), (36, 9, 164, 137)),  # plenty: as the model's authors did it
    ],
)
def test_only_what_there_is_to_spare_is_cut_off(size, box):
    assert middle_box(*size, 64, 73) == pytest.approx(box)


def test_the_part_shown_grows_with_the_image_without_a_jump():
    sides = [middle_box(short, 400, 64, 73)[3] - middle_box(short, 400, 64, 73)[1] for short in range(1, 300)]
    assert all(0 <= after - before <= 1 + 1e-9 for before, after in itertools.pairwise(sides))
    assert all(side <= short for short, side in enumerate(sides, start=1))


def test_a_run_on_files_of_the_asked_size_is_asked_about_all_of_them(tmp_path):
    class_folders(tmp_path / "data" / "train", {"a": 8, "b": 8}, size=(32, 32))
    class_folders(tmp_path / "data" / "val", {"a": 2, "b": 2}, start=50, size=(32, 32))
    settings = tiny(data__img_size=32, data__workers=0, model__name="resnet18", model__options={})
    run = saccade.train(str(tmp_path / "data"), epochs=1, out=tmp_path / "run", settings=settings, quiet=True)
    opened = open_predictor(run.path)
    assert opened.spec.shorter > 32  # timm's crop_pct, for images with something to spare
    image = pixels(3, 32, 32)
    assert np.array_equal(opened.framing(image).permute(1, 2, 0).numpy(), image)
