"""Runs hand on what their plug-ins learned, from task to task."""

import pytest
from safetensors.torch import load_file

import saccade
from support.masks import make_masks
from support.trainings import png_folder

PLUGINS = ["token_embedding", "uniform", "broadcast:scale=true", "squeeze", "extra_block"]
FIXED = {"model": "test_vit", "epochs": 1, "batch_size": 6, "device": "cpu", "workers": 0, "quiet": True}


@pytest.mark.slow
def test_a_classifier_a_segmenter_and_a_classifier_start_from_one_another(tmp_path):
    images, masks = png_folder(tmp_path / "images", train=12, val=3), make_masks(tmp_path / "masks")
    still = {"optim.lr": 1e-30, "keep.ema": None}
    first = saccade.train(str(images), plugins=PLUGINS, img_size=32, lr=1e-3, out=tmp_path / "first", **FIXED)
    second = saccade.train(
        str(masks), task="segment", checkpoint=first.path, plugins=PLUGINS, img_size=48, out=tmp_path / "second",
        settings={"model.head": "fpn:width=16,inner=32", **still}, **FIXED,
    )  # fmt: skip
    third = saccade.train(
        str(images),
        checkpoint=second.path,
        plugins=PLUGINS,
        img_size=64,
        out=tmp_path / "third",
        settings=still,
        **FIXED,
    )
    one, two, three = (load_file(run.path / "model.safetensors") for run in (first, second, third))
    names = [name for name in one if name.startswith(("blocks", "patch_embed"))]
    assert any("broadcast" in name for name in names)
    for name in names:
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert (one[name] == two[f"backbone.{name}"]).all(), name
            assert (one[name] == three[name]).all(), name
