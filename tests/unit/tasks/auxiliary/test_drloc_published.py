"""The localization loss against its published code: networks, defaults, schedules."""

from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
from torch import nn

from saccade.layers.relative_location import offsets, pool_map
from saccade.tasks import RelativeLocalization
from support.drloc_hosts import HOSTS, host, images, listen, same_grid
from support.golden import case, integers, read, strided

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
