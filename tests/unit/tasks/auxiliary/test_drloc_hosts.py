"""Where the localization loss finds a host's grid, and what it refuses."""

import pytest
import torch
from torch import nn

from saccade.plugins import HostError
from saccade.tasks import RelativeLocalization
from support.drloc_hosts import TARGETS, every_host, host, images, listen, same_grid, seeded
from support.hosts import Plain


@every_host
def test_cells_are_the_hosts_last_map_before_its_norm(name):
    model = host(name).eval()
    x = images(model)
    task = RelativeLocalization(model, pool=None, norm=False, pairs=500)
    heard = listen(task.eval())
    task(x, localize=True)
    wanted = model.forward_intermediates(x, indices=1, norm=False, intermediates_only=True)[0]
    if name == "t2t_vit_7":
        assert task.grid_recorder.sources[0].path == "norm"
    same_grid(heard[0][0], wanted)
    assert heard[0][1].max() == heard[0][0].shape[1] - 1


def test_class_token_is_never_picked():
    model = host("deit_tiny_distilled_patch16_224")
    task = RelativeLocalization(model, pairs=2000)
    heard = listen(task)
    task(images())
    tokens, pairs, _ = heard[0]
    assert tokens.shape[1] == 2 + 24
    assert pairs.unique().tolist() == list(range(2, 26))


@pytest.mark.parametrize("size", [(64, 96), (96, 64), (97, 131)], ids=str)
@pytest.mark.parametrize("name", ["t2t_vit_7", "nommer_tiny", "sot_tiny", "cvt_13", "glnet_stl"])
def test_token_grids_of_any_image_size_are_told(name, size):
    model = host(name).eval()
    x = images(size=size)
    task = RelativeLocalization(model, grids="stages", pool=None, norm=False).eval()
    grids, read = [], task.grid_recorder.read
    task.grid_recorder.read = lambda *args: grids.append(read(*args)) or grids[-1]
    task(x, localize=True)
    wanted = model.forward_intermediates(x, norm=False, intermediates_only=True)
    assert [found.grid for found in grids] == [tuple(want.shape[2:]) for want in wanted]
    for found, want in zip(grids, wanted, strict=True):
        assert found.skip == found.tokens.shape[1] - want.shape[2] * want.shape[3]
        same_grid(found.tokens, want)


def test_hugging_face_vit_is_read_between_last_layer_and_norm():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=64,
        patch_size=16,
        num_labels=5,
    )
    model = transformers.ViTForImageClassification(config).eval()
    x = images(size=(64, 64))
    task = RelativeLocalization(model).eval()
    assert task.weight == 0.01
    heard = listen(task)
    result = task(x, TARGETS, localize=True)
    states = model(x, output_hidden_states=True)
    torch.testing.assert_close(heard[0][0], states.hidden_states[-1])
    assert heard[0][1].min() == 1
    assert torch.equal(result["output"], states.logits)
    assert len(RelativeLocalization(model, grids="blocks", loss="cross_entropy").locators) == 2
    with pytest.raises(HostError, match="reads text"):
        RelativeLocalization(
            transformers.BertModel(transformers.BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2))
        )


def test_a_plain_module_is_told_by_path_or_by_function():
    model, x = Plain(), images()
    by_path = RelativeLocalization(model, features="conv", dim=8)

    def run(module, x):
        features = module.conv(x)
        return module.head(features.mean((2, 3))), features.permute(0, 2, 3, 1)

    by_function = RelativeLocalization(model, features=run, dim=8, layout="NHWC")
    by_function.load_state_dict(by_path.state_dict())
    one, two = (task(x, TARGETS, generator=seeded()) for task in (by_path, by_function))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(one[key], two[key])


def test_a_plain_encoder_of_tokens_is_told_by_its_grid():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.embed = nn.Conv2d(3, 16, 8, stride=8)

        def forward(self, x):
            return self.encoder(self.embed(x).flatten(2).transpose(1, 2)).mean(1)

    x = images(size=(64, 48))
    task = RelativeLocalization(Encoder(), grid=(8, 6), loss="cross_entropy", pool=None)
    assert [axis.out_features for axis in task.locators[0].axes] == [15, 11]
    assert task(x)["localization"].isfinite()
    with pytest.raises(HostError, match=r"grid=\(5, 6\) was given, but there are 48 tokens"):
        RelativeLocalization(Encoder(), grid=(5, 6))(x)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "found no grid of features in Plain.*pass features="),
        ({"grids": "stages"}, "found no stages in Plain"),
        ({"features": "conv"}, "does not report the number of channels of 'conv'; pass dim="),
        ({"features": "convolution", "dim": 8}, "has no module 'convolution'"),
        ({"features": "conv", "dim": 8, "loss": "cross_entropy"}, "does not report its grid size.*pass cells="),
    ],
)
def test_a_host_that_tells_too_little_is_refused_with_what_to_pass(kwargs, message):
    with pytest.raises(HostError, match=message):
        RelativeLocalization(Plain(), **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"features": "conv", "dim": 9}, "9 channels were expected"),
        ({"features": "head", "dim": 5}, "returns a tensor with 2 dimensions, which is not a grid"),
    ],
)
def test_features_that_form_no_grid_are_refused_when_they_pass(kwargs, message):
    task = RelativeLocalization(Plain(), **kwargs)
    with pytest.raises(HostError, match=message):
        task(images())
    assert task.grid_recorder.recorded is None


def test_a_grid_of_one_cell_is_refused():
    with pytest.raises(HostError, match="one cell, so nothing can be localized"):
        RelativeLocalization(host("resnet50"))(images(size=(32, 32)))


def test_a_norm_that_does_not_exist_is_refused():
    with pytest.raises(HostError, match="no final norm named norm"):
        RelativeLocalization(host("resnet50"), norm=True)


def test_pairs_of_another_shape_are_refused():
    task = RelativeLocalization(host())
    with pytest.raises(ValueError, match=r"pairs of shape \(2, 64, 2\) were given; .* 1, 2, number, 2"):
        task(images(), pairs=task.draw(2, device="cpu")["pairs"][0])


@pytest.mark.parametrize("name", ["schedule", "loss", "unit", "prior_on", "grids"])
def test_unknown_choices_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}='sideways' was given; allowed are"):
        RelativeLocalization(Plain(), **{name: "sideways"})


def test_classes_cannot_be_scaled_and_no_pairs_cannot_be_drawn():
    with pytest.raises(ValueError, match="unit='sides' was given; allowed are 'cells'"):
        RelativeLocalization(host(), loss="cross_entropy", unit="sides")
    with pytest.raises(ValueError, match="pairs=0 was given"):
        RelativeLocalization(host(), pairs=0)
