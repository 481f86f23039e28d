from dataclasses import fields, replace

import pytest

from saccade.comparison.plan import snapshot
from saccade.comparison.plan.snapshot import USED_LATER, DataCache
from saccade.settings import DataConfig, TrainConfig, overlay
from support.trainings import png_folder

OTHER = {  # a value of each setting of the data that is not its default
    "path": "elsewhere",
    "val": "elsewhere",
    "val_share": 0.3,
    "split_seed": 1,
    "buffer": 8,
    "bad_limit": 0.5,
    "columns": {"label": "colour"},
    "group": "patient",
    "folds": 3,
    "fold": 1,
    "keep_aspect": True,
}


@pytest.mark.parametrize("name", [field.name for field in fields(DataConfig) if field.name not in USED_LATER])
def test_arms_share_samples_only_where_every_setting_that_opens_them_is_equal(monkeypatch, name):
    opened = []
    monkeypatch.setattr(snapshot, "open_samples", lambda task, data: opened.append((task, data)) or len(opened))
    cache, config = DataCache(), TrainConfig()
    other = replace(config, data=replace(config.data, **{name: OTHER[name]}))
    assert cache.open(config) == cache.open(config) == 1
    assert cache.open(other) == 2
    assert opened[1] == (None, other.data)


def test_arms_with_other_columns_are_trained_on_their_own_labels(tmp_path):
    folder = png_folder(tmp_path / "images", train=12, val=0)
    images = sorted(path.relative_to(tmp_path) for path in folder.rglob("*.png"))
    rows = [f"{path},{place % 2},{'xyz'[place % 3]}" for place, path in enumerate(images)]
    (tmp_path / "list.csv").write_text("\n".join(["image,parity,colour", *rows]))
    cache = DataCache()
    configs = [
        overlay(TrainConfig(), {"data.path": str(tmp_path / "list.csv"), "data.columns": {"label": label}})
        for label in ("parity", "colour")
    ]
    assert [cache.open(config)[1].outputs for config in configs] == [("0", "1"), ("x", "y", "z")]
