import pytest
import timm

from saccade.building import build_model
from saccade.config import ConfigError, ModelConfig
from saccade.data.spec import InputSpec

SPEC = {"outputs": ("a", "b"), "in_chans": 3, "img_size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}


def test_weights_that_cannot_be_fetched_are_told_with_the_way_out(monkeypatch):
    def offline(*_args, **_options):
        raise FileNotFoundError("the hub is not there\nand more lines")

    monkeypatch.setattr(timm, "create_model", offline)
    wanted = r"weights of vit_tiny_patch16_224 could not be fetched \(the hub is not there\).*model\.checkpoint=FILE"
    with pytest.raises(ConfigError, match=wanted):
        build_model(ModelConfig(name="vit_tiny", pretrained=True), InputSpec(**SPEC), seed=0)
    with pytest.raises(FileNotFoundError):
        build_model(ModelConfig(name="vit_tiny"), InputSpec(**SPEC), seed=0)
