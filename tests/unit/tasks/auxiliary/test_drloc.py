import copy
import importlib
import itertools
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import torch.multiprocessing as mp
from timm.optim import param_groups_weight_decay
from torch import nn

from saccade.layers.relative_location import offsets, pool_map
from saccade.plugins import HostError
from saccade.tasks import Classify, RelativeLocalization, Task
from support.golden import case, integers, read, strided
from support.hosts import Plain

for family in ("cvt", "glnet", "nommer", "sot", "t2t"):
    importlib.import_module(f"saccade.models.{family}")

SIZE = (64, 96)
TARGETS = torch.tensor([1, 3])
HOSTS = {
    "vit_tiny_patch16_224": {"depth": 2, "img_size": SIZE},
    "deit_tiny_distilled_patch16_224": {"depth": 2, "img_size": SIZE},
    "eva02_tiny_patch14_224": {"depth": 2, "patch_size": 16, "img_size": SIZE},
    "cait_xxs24_224": {"depth": 2, "img_size": SIZE},
    "mixer_s32_224": {"embed_dim": 48, "img_size": 64},
    "pit_ti_224": {"depth": (1, 1, 1), "img_size": SIZE},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1), "embed_dim": 24, "img_size": SIZE},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
    "resnet50": {"layers": (1, 1, 1, 1)},
    "nommer_tiny": {"depths": (1, 1, 1, 1), "img_size": SIZE},
    "glnet_stl": {"depths": (1, 1, 2, 1)},
    "sot_tiny": {"depth": 2, "img_size": SIZE},
    "cvt_13": {"depths": (1, 1, 1)},
    "t2t_vit_7": {"depth": 2, "img_size": SIZE},
}
every_host = pytest.mark.parametrize("name", HOSTS)


def host(name="vit_tiny_patch16_224", **kwargs):
    kwargs = {**HOSTS[name], **kwargs}
    if name == "mixer_s32_224":
        width = kwargs.pop("embed_dim")
        return timm.models.mlp_mixer.MlpMixer(5, patch_size=32, num_blocks=2, embed_dim=width, **kwargs)
    if name == "resnet50":
        return timm.models.resnet.ResNet(timm.models.resnet.Bottleneck, num_classes=5, **kwargs)
    return timm.create_model(name, num_classes=5, **kwargs)


def images(model=None, size=SIZE):
    if model is not None and type(model).__name__ == "MlpMixer":
        size = (64, 64)
    return torch.randn(2, 3, *size)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def listen(task):
    """Keep what the task's locators are given (tokens, pairs) and return."""
    heard = []
    for locator in task.locators:
        locator.register_forward_hook(lambda _, args, output: heard.append((*args, output)))
    return heard


def same_grid(tokens, wanted):
    """Compare a sequence that may begin with a class token with a map, B, C, H, W."""
    wanted = wanted.flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens[:, tokens.shape[1] - wanted.shape[1] :], wanted)


# Hosts


@every_host
@pytest.mark.parametrize("grids", ["last", "stages", "blocks"])
def test_loss_trains_host_and_locators(name, grids):
    model = host(name)
    if name == "resnet50" and grids == "blocks":
        with pytest.raises(HostError, match="found none in ResNet"):
            RelativeLocalization(model, grids=grids)
        return
    task = RelativeLocalization(model, grids=grids, weight=1.0)
    x = images(model)
    heard = listen(task)
    result = task(x)  # without targets: localization alone
    result["loss"].backward()
    assert all(p.grad.abs().sum() > 0 for p in task.locators.parameters())
    stem = next(m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert stem.weight.grad.abs().sum() > 0
    assert len(heard) == len(task.locators) == {"last": 1}.get(grids, len(task.locators))
    for tokens, pairs, _ in heard:
        assert pairs.shape == (2, 64, 2)
        assert pairs.max() < tokens.shape[1]


@every_host
def test_answer_is_the_models_own_to_the_bit(name):
    model = host(name).eval()
    x = images(model)
    wanted = model(x)
    keys = list(model.state_dict())
    task = RelativeLocalization(model).eval()
    assert torch.equal(task(x)["output"], wanted)
    assert torch.equal(task(x, localize=True)["output"], wanted)
    assert task.model is model
    assert list(model.state_dict()) == keys
    assert torch.equal(model(x), wanted)


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
    assert task.grid_recorder.heard is None


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


# Published choices


@pytest.mark.parametrize(
    ("name", "weight", "grid", "norm"),
    [
        ("swin_tiny_patch4_window7_224", 0.5, (7, 7), False),
        ("vit_tiny_patch16_224", 0.01, (14, 14), False),
        ("t2t_vit_7", 0.1, (7, 7), True),
        ("cvt_13", 0.1, (7, 7), False),
        ("resnet50", 0.5, (7, 7), False),
        ("sot_tiny", 0.5, (7, 7), False),
    ],
)
def test_defaults_are_those_published_for_the_host(name, weight, grid, norm):
    model = host(name, **({"img_size": 224} if "img_size" in HOSTS[name] else {})).eval()
    x = images(size=(224, 224))
    task = RelativeLocalization(model).eval()
    assert task.weight == weight
    heard = listen(task)
    task(x, localize=True)
    wanted = model.forward_intermediates(x, indices=1, norm=norm, intermediates_only=True)[0]
    wanted = pool_map(wanted, 7) if name in ("t2t_vit_7", "cvt_13", "sot_tiny") else wanted
    assert wanted.shape[2:] == grid
    same_grid(heard[0][0], wanted)


def test_the_papers_vit_is_pooled_on_request():
    task = RelativeLocalization(host(img_size=224), pool=7)
    heard = listen(task)
    task(images(size=(224, 224)))
    assert heard[0][0].shape[1] == 49


@pytest.mark.parametrize(("key", "weight", "total"), [("l0.5_w20_t300", 0.5, 300), ("l0.1_w20_t100", 0.1, 100)])
def test_weight_follows_the_published_schedule(key, weight, total):
    task = RelativeLocalization(host(), weight=weight)
    _, arrays = read("drloc_parts")
    got = [task.weight_at(epoch, total) for epoch in range(total + 1)]
    assert got == pytest.approx(arrays[f"lambda_schedule.{key}"].tolist(), abs=1e-12)
    task.set_epoch(30, total)
    assert float(task.strength) == pytest.approx(got[30])
    constant = RelativeLocalization(host(), weight=weight, schedule="constant")
    assert {constant.weight_at(epoch, total) for epoch in range(total + 1)} == {weight}


def test_short_and_overlong_runs_have_a_weight():
    task = RelativeLocalization(host(), weight=1.0)
    assert [task.weight_at(epoch, 5) for epoch in range(5)] == [0, 1, 0.75, 0.5, 0.25]
    assert task.weight_at(0, 1) == 1  # one epoch is trained with it too
    assert max(task.weight_at(epoch, 50) for epoch in range(50)) == task.weight_at(10, 50) == 1
    assert task.weight_at(120, 100) == 0
    assert RelativeLocalization(host(), weight=1.0, ramp_epochs=0).weight_at(0, 10) == 1
    assert RelativeLocalization(host(), weight=1.0, ramp_epochs=20).weight_at(5, 10) == 0.25  # as asked for


def golden_pairs(side):
    places = (integers(f"drloc/{name}/k{side}/n2/m64", side, (2, 64, 2)) for name in ("pos1", "pos2"))
    return torch.stack([torch.from_numpy(p[..., 0] * side + p[..., 1]) for p in places], -1)[None]


def rename_swin(key, value):
    if ".downsample." in key:  # timm merges at the start of the next stage
        _, stage, rest = key.split(".", 2)
        key = f"layers.{int(stage) + 1}.{rest}"
    return key.replace("head.", "head.fc."), value


def rename_vit(key, value):
    for old, new in (
        ("pos_embedding", "pos_embed"),
        ("to_patch_embedding.1", "patch_embed.proj"),
        ("transformer.layers.", "blocks."),
        (".0.norm.", ".norm1."),
        (".1.norm.", ".norm2."),
        (".0.fn.to_qkv.", ".attn.qkv."),
        (".0.fn.to_out.0.", ".attn.proj."),
        (".1.fn.net.0.", ".mlp.fc1."),
        (".1.fn.net.3.", ".mlp.fc2."),
        ("mlp_head.0.", "norm."),
        ("mlp_head.1.", "head."),
    ):
        key = key.replace(old, new)
    if key == "patch_embed.proj.weight":
        value = value.unflatten(1, (16, 16, 3)).permute(0, 3, 1, 2)
    return key, value


def rename_resnet(key, value):
    names = {"0": "conv1", "1": "bn1", **{str(i + 3): f"layer{i}" for i in range(1, 5)}}
    if key.startswith("model."):
        _, number, rest = key.split(".", 2)
        key = f"{names[number]}.{rest}"
    return key, value


LN = partial(nn.LayerNorm, eps=1e-5)
PUBLISHED = {
    ("cvt_13", "224"): ("cvt_13", {}, None, 7),
    ("t2t_vit_14", "224"): ("t2t_vit_14", {}, None, 7),
    ("t2t_vit_14", "192"): ("t2t_vit_14", {"img_size": 192}, None, 6),
    ("drloc_swin_tiny", "224"): ("swin_tiny_patch4_window7_224", {}, rename_swin, 7),
    ("drloc_vit_b16", "224"): ("vit_base_patch16_224", {"qkv_bias": False, "norm_layer": LN}, rename_vit, 14),
    ("drloc_resnet50", "224"): ("resnet50", {}, rename_resnet, 7),
}


def published(name, id, **options):
    """A published network as a task on our or timm's model, in float64, with the published weights."""
    golden = case(name, id)
    constants = ("attn_mask", "relative_position_index")  # of Swin; timm makes its own
    golden = replace(golden, entries=tuple(e for e in golden.entries if not e["key"].endswith(constants)))
    model_name, kwargs, rename, side = PUBLISHED[name, id]
    state = golden.state_dict()
    model = timm.create_model(model_name, **kwargs)
    theirs = {key: value for key, value in state.items() if not key.startswith("drloc")}
    if rename is not None:
        theirs = dict(rename(key, value) for key, value in theirs.items())
    missing, unexpected = model.load_state_dict(theirs, strict=False)
    assert not unexpected
    assert all(key.endswith(constants) for key in missing)
    task = RelativeLocalization(model, **options).double().eval()
    layers = {"0": "fc1", "2": "fc2", "4": "fc3"}
    locator = {}
    for key, value in state.items():
        if key.startswith("drloc"):
            *_, layer, kind = key.split(".")
            locator[f"{layers[layer]}.{kind}"] = value
    if "grids" not in options:
        task.locators[0].load_state_dict(locator)
    return golden, task, side


def close(got, want):
    torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "id"), PUBLISHED)
@torch.no_grad()
def test_published_network_is_met(name, id):
    golden, task, side = published(name, id)
    heard = listen(task)
    pairs = golden_pairs(side)
    result = task(golden.input().double(), localize=True, pairs=pairs)
    close(result["output"], golden.logits)
    if name in ("cvt_13", "t2t_vit_14"):
        close(strided(heard[0][0].transpose(1, 2).contiguous()), golden.feature("drloc_grid"))
    arrays = golden.arrays
    close(heard[0][2].flatten(0, 1), torch.from_numpy(arrays[f"{id}.drloc.pred"]))
    target = offsets(pairs[0], (side, side)).flatten(0, 1)
    close(target.double(), torch.from_numpy(arrays[f"{id}.drloc.delta"]))
    close(result["localization"], torch.from_numpy(arrays[f"{id}.drloc.loss_l1"]))


@pytest.mark.slow
@torch.no_grad()
def test_stages_of_swin_are_the_published_ones():
    golden, task, _ = published("drloc_swin_tiny", "224", grids="stages")
    heard = listen(task)
    task(golden.input().double(), localize=True)
    assert [cells.shape[1:] for cells, *_ in heard] == [(784, 192), (196, 384), (49, 768), (49, 768)]
    for index, (cells, *_) in enumerate(heard):
        close(strided(cells.contiguous()), golden.feature(f"layer{index}"))


@pytest.mark.slow
@torch.no_grad()
def test_non_square_grid_of_cvt_is_pooled_as_published():
    golden = case("cvt_13", "256x320")
    model = timm.create_model("cvt_13")
    model.load_state_dict(golden.state_dict())
    task = RelativeLocalization(model).double().eval()
    heard = listen(task)
    task(golden.input().double(), localize=True)
    assert heard[0][0].shape == (2, 80, 384)
    close(strided(heard[0][0].transpose(1, 2).contiguous()), golden.feature("drloc_grid"))


# Loss


def test_loss_is_the_tasks_plus_the_weighted_sum_over_grids():
    task = RelativeLocalization(host(), grids="blocks", weight=0.3, label_smoothing=0.1)
    x = images()
    pairs = task.draw(2, device="cpu", generator=seeded())["pairs"]
    assert pairs.shape == (2, 2, 64, 2)
    heard = listen(task)
    result = task(x, TARGETS, pairs=pairs)
    wanted = Classify(task.model, label_smoothing=0.1)(x, TARGETS)
    each = [
        (predicted - offsets(p % 24, (4, 6))).abs().mean() for (_, _, predicted), p in zip(heard, pairs, strict=True)
    ]
    torch.testing.assert_close(result["localization"], sum(each))
    torch.testing.assert_close(result["loss"], wanted["loss"] + 0.3 * sum(each))
    torch.testing.assert_close(result["classification"], wanted["loss"])
    assert not result["localization"].requires_grad
    task.set_epoch(10, 100)
    torch.testing.assert_close(task(x, TARGETS, pairs=pairs)["loss"], wanted["loss"] + 0.15 * sum(each))


VARIANTS = [
    {"loss": loss, "signed": signed, "unit": unit}
    for loss, signed in itertools.product(("l1", "cross_entropy", "gaussian", "square"), (False, True))
    for unit in (("cells", "sides", "span") if loss == "l1" else ("cells",))
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_every_variant_is_learnt(variant):
    place = torch.eye(24).unflatten(1, (4, 6)).expand(1, -1, -1, -1)

    class Places(nn.Module):
        def forward(self, x):
            return self.grid(place.expand(len(x), -1, -1, -1)).mean((2, 3))

    model = Places()
    model.grid = nn.Identity()
    task = RelativeLocalization(model, features="grid", dim=24, cells=(4, 6), pool=None, hidden_dim=64, **variant)
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-2)
    x, generator = torch.zeros(8, 3, *SIZE), seeded()
    losses = []
    for _ in range(80):
        result = task(x, generator=generator)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        losses.append(float(result["localization"]))
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


def test_loss_sees_the_order_of_cells():
    """Shuffling the cells of a map changes nothing for a classifier, but everything for localization."""
    model = Plain()
    task = RelativeLocalization(model, features="conv", dim=8)
    x = images()
    patches = x.unflatten(3, (6, 16)).unflatten(2, (4, 16)).permute(0, 1, 2, 4, 3, 5).flatten(2, 3)  # B, 3, 24, 16, 16
    shuffled = patches[:, :, torch.randperm(24)].unflatten(2, (4, 6)).permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    one, two = (task(batch, generator=seeded()) for batch in (x, shuffled))
    torch.testing.assert_close(one["output"], two["output"])
    assert not torch.isclose(one["localization"], two["localization"])


def test_class_counts_are_per_axis():
    for signed, counts in ((True, [7, 11]), (False, [4, 6])):
        task = RelativeLocalization(host(), loss="cross_entropy", signed=signed)
        assert [axis.out_features for axis in task.locators[0].axes] == counts
        assert task(images())["localization"].isfinite()
    task = RelativeLocalization(host(), loss="gaussian", cells=14)
    assert [axis.out_features for axis in task.locators[0].axes] == [27, 27]
    with pytest.raises(ValueError, match=r"4x6 cells, more than the location classes cover; pass cells=\(4, 6\)"):
        RelativeLocalization(host(), loss="gaussian", cells=5)(images())


@pytest.mark.parametrize("grids", ["last", "stages", "blocks"])
@pytest.mark.parametrize("name", ["glnet_stl", "pit_ti_224", "swin_tiny_patch4_window7_224"])
def test_classes_suffice_for_smaller_images_than_the_host_was_built_for(name, grids):
    model = host(name)
    assert RelativeLocalization(model, grids=grids, loss="cross_entropy")(images())["localization"].isfinite()


# Randomness


def test_same_generator_state_gives_the_same_draws():
    model = host().eval()
    task = RelativeLocalization(model).train()
    model.eval()
    x = images()
    state = torch.get_rng_state()
    one, two, other = (task(x, generator=seeded(n))["localization"] for n in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    drawn = task.draw(2, device="cpu", generator=seeded(1))
    assert torch.equal(task(x, **drawn)["localization"], one)
    assert torch.equal(torch.get_rng_state(), state)  # the default generator was left alone


def test_without_a_generator_the_devices_default_is_used():
    task = RelativeLocalization(host())
    x = images()
    torch.manual_seed(5)
    one = task(x)["localization"]
    assert not torch.equal(one, task(x)["localization"])
    torch.manual_seed(5)
    assert torch.equal(one, task(x)["localization"])


def test_evaluation_draws_nothing_and_adds_nothing():
    task = RelativeLocalization(host()).eval()
    x, generator = images(), seeded()
    before, default = generator.get_state(), torch.get_rng_state()
    result = task(x, TARGETS, generator=generator)
    assert result.keys() == {"loss", "output", "classification"}
    assert torch.equal(result["loss"].detach(), result["classification"])
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), default)
    assert "localization" in task(x, TARGETS, localize=True)


def test_pairs_are_drawn_on_the_device_of_the_features():
    with torch.device("meta"):
        task = RelativeLocalization(host("convnext_atto"))
        drawn = task.draw(2, device="meta")["pairs"]
        result = task(torch.empty(2, 3, *SIZE), torch.empty(2, dtype=torch.int64))
    assert drawn.device.type == result["loss"].device.type == "meta"


# A citizen of PyTorch


def test_localization_is_saved_with_the_task_and_not_with_the_host():
    task = RelativeLocalization(host(), grids="blocks", loss="cross_entropy")
    extra = task.state_dict().keys() - {f"base.model.{key}" for key in task.model.state_dict()}
    assert extra == {f"locators.{key}" for key in task.locators.state_dict()}
    again = RelativeLocalization(host(), grids="blocks", loss="cross_entropy")
    again.load_state_dict(task.state_dict())
    x = images()
    one, two = (t(x, TARGETS, generator=seeded()) for t in (task, again))
    assert torch.equal(one["loss"], two["loss"])


def test_biases_of_the_locators_are_not_decayed():
    task = RelativeLocalization(host())
    spared = {id(p) for p in param_groups_weight_decay(task, 0.05)[0]["params"]}
    assert all((p.ndim == 1) == (id(p) in spared) for p in task.locators.parameters())


def test_copy_localizes_its_own_host():
    task = RelativeLocalization(host())
    twin = copy.deepcopy(task)
    x = images()
    assert torch.equal(task(x, generator=seeded())["loss"], twin(x, generator=seeded())["loss"])
    with torch.no_grad():
        twin.model.patch_embed.proj.weight.normal_()
    assert not torch.isclose(task(x, generator=seeded())["loss"], twin(x, generator=seeded())["loss"], rtol=1e-4)
    copy.deepcopy(task.model)(x)


def test_release_leaves_no_hook_on_the_host():
    task = RelativeLocalization(host(), grids="stages")
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in task.model.modules())  # noqa: E731
    assert hooks() == 2
    task.release()
    assert hooks() == 0
    with pytest.raises(HostError, match="did not run"):
        task(images())


def test_an_error_of_the_model_is_not_hidden():
    task = RelativeLocalization(host())
    with pytest.raises(AssertionError, match="Input"):
        task(images(size=(32, 32)))
    assert task.grid_recorder.heard is None


def test_another_task_is_extended():
    class Shrink(Task):
        def __init__(self, model):
            super().__init__()
            self.model, self.epoch = model, None

        def loss(self, batch, *, generator=None, by=1.0):
            output = self.ask(batch)
            loss = by * output.square().mean()
            return {"loss": loss, "output": output, "size": loss.detach()}

        def draw(self, batch_size, *, device, generator=None):
            return {"by": torch.rand((), device=device, generator=generator)}

        def set_epoch(self, epoch, total_epochs):
            self.epoch = epoch

    inner = Shrink(host())
    task = RelativeLocalization(inner, weight=1.0)
    assert task.model is inner.model
    task.set_epoch(20, 100)
    assert inner.epoch == 20
    result = task(images(), **task.draw(2, device="cpu", generator=seeded()))
    torch.testing.assert_close(result["loss"], result["size"] + result["localization"])
    with pytest.raises(ValueError, match="within a task, give a path"):
        RelativeLocalization(inner, features=lambda model, x: (model(x), x))


def test_gradient_is_the_same_with_recomputed_blocks():
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = host()
        model.set_grad_checkpointing(recompute)
        task = RelativeLocalization(model, grids="blocks", weight=1.0)
        task(torch.ones(2, 3, *SIZE), generator=seeded())["loss"].backward()
        grads.append([p.grad for p in task.parameters() if p.grad is not None])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("loss", ["l1", "cross_entropy", "gaussian"])
def test_double_stays_double_and_autocast_stays_finite(loss):
    task = RelativeLocalization(host(), loss=loss)
    x = images()
    with torch.autocast("cpu", torch.bfloat16):
        result = task(x, TARGETS, generator=seeded())
    result["loss"].backward()
    assert result["loss"].dtype == result["localization"].dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in task.parameters() if p.grad is not None)
    single = task(x, TARGETS, generator=seeded())["localization"]
    torch.testing.assert_close(result["localization"], single, rtol=0.05, atol=0.02)
    double = task.double()(x.double(), TARGETS, generator=seeded())
    assert double["loss"].dtype == double["localization"].dtype == torch.float64
    torch.testing.assert_close(double["localization"].float(), single, rtol=1e-4, atol=1e-4)


def test_locators_take_the_hosts_precision():
    task = RelativeLocalization(host().bfloat16())
    assert {p.dtype for p in task.locators.parameters()} == {torch.bfloat16}
    assert task(images().bfloat16(), TARGETS)["loss"].isfinite()


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_whole_it_gives_the_same(recompute):
    model = host(depth=1)
    model.set_grad_checkpointing(recompute)
    task = RelativeLocalization(model, weight=1.0)
    x, drawn = images(), task.draw(2, device="cpu", generator=seeded())
    compiled = torch.compile(task, fullgraph=True, backend="aot_eager")
    results = []
    for run in (compiled, task):
        task.zero_grad()
        result = run(x, TARGETS, **drawn)
        result["loss"].backward()
        results.append((result["loss"], [p.grad.clone() for p in task.parameters()]))
    torch.testing.assert_close(*results)
    with torch._dynamo.config.patch(error_on_recompile=True):
        task.set_epoch(5, 100)  # another weight
        again = compiled(x, TARGETS, **drawn)
    torch.testing.assert_close(again["loss"], again["classification"] + 0.25 * again["localization"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "glnet_stl", "t2t_vit_7"])
@pytest.mark.parametrize("options", [{}, {"grids": "blocks", "loss": "gaussian"}], ids=["last", "blocks"])
def test_compiled_whole_it_draws_and_trains(name, options):
    task = RelativeLocalization(host(name), **options)
    result = torch.compile(task, fullgraph=True, backend="aot_eager")(images(), TARGETS)
    result["loss"].backward()
    assert all(p.grad.isfinite().all() for p in task.parameters())


@pytest.mark.slow
def test_compiled_in_parts_it_takes_a_generator():
    task, x = RelativeLocalization(host(depth=1)), images()
    loose = torch.compile(task, backend="aot_eager")(x, TARGETS, generator=seeded())
    torch.testing.assert_close(loose["loss"], task(x, TARGETS, generator=seeded())["loss"])


def ddp_worker(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    task = RelativeLocalization(host(), weight=1.0)
    x, drawn = torch.randn(4, 3, *SIZE, generator=seeded()), task.draw(4, device="cpu", generator=seeded())
    targets = torch.tensor([0, 1, 2, 3])
    task(x, targets, **drawn)["loss"].backward()
    wanted = [p.grad.clone() for p in task.parameters()]
    task.zero_grad()
    parallel = nn.parallel.DistributedDataParallel(task)
    mine = slice(2 * rank, 2 * rank + 2)
    for epoch in (0, 20):  # weight zero leaves no parameter without gradient
        task.zero_grad()
        task.set_epoch(epoch, 100)
        parallel(x[mine], targets[mine], pairs=drawn["pairs"][:, mine])["loss"].backward()
        assert all(p.grad is not None for p in task.parameters())
    for got, want in zip(task.parameters(), wanted, strict=True):
        torch.testing.assert_close(got.grad, want, rtol=1e-4, atol=1e-6)
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_gradient_of_the_joint_batch(tmp_path):
    mp.spawn(ddp_worker, (str(tmp_path),), nprocs=2)
