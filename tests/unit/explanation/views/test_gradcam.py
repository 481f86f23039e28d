import numpy as np
import pytest
import timm
import torch
from torch import nn

from saccade.explanation.views.gradcam import FeatureMap, compute_gradcam, gradcam_view, record_maps
from saccade.plugins import SecondOrderHead, attach, find_host
from saccade.plugins.tokens import HostError


class Plain(nn.Module):
    """A convolution, an average over places and a linear layer."""

    def __init__(self, frozen=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1, bias=False)
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([1.0, -1.0, 0.5]).view(3, 1, 1, 1))
            self.head.weight.copy_(torch.tensor([[1.0, 0.0, 2.0], [-1.0, 2.0, 0.0]]))
        if frozen:
            self.requires_grad_(False)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


def vit(**options):
    torch.manual_seed(0)
    sizes = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options}).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def black(count=2, height=16, width=24):
    return [np.zeros((height, width, 3), dtype=np.uint8)] * count


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("target", [0, 1])
def test_network_of_one_convolution_gives_the_class_activation_map(target, frozen):
    model = Plain(frozen).eval()
    x = torch.randn(2, 1, 4, 7)
    cams = compute_gradcam(model, x, targets=target)
    assert cams.layer == "conv"
    factor = (2.0, -3.0)[target]  # of the image: 1 * 1 + 2 * 0.5, and -1 * 1 + 2 * -1
    want = (factor * x[:, 0]).clamp_min(0)
    np.testing.assert_allclose(cams.peak["both"], want.amax((1, 2)) / 28, rtol=1e-5)  # the mean is over 28 places
    np.testing.assert_allclose(cams.heat["both"], want / want.amax((1, 2), keepdim=True), atol=1e-6)


def test_class_is_the_best_scored_one_or_the_one_asked_for(images):
    model = vit()
    with torch.no_grad():
        logits = model(images)
    cams = compute_gradcam(model, images)
    np.testing.assert_array_equal(cams.targets, logits.argmax(1))
    np.testing.assert_allclose(cams.logits["both"], logits.amax(1), rtol=1e-5)
    other = compute_gradcam(model, images, targets=[3, 1])
    assert other.targets.tolist() == [3, 1]
    with pytest.raises(ValueError, match="0 to 4"):
        compute_gradcam(model, images, targets=5)


def test_class_token_model_is_read_before_its_last_attention(images):
    """At the words of the last block there is no gradient: nothing reads them."""
    model = vit()
    cams = compute_gradcam(model, images, targets=3)
    assert cams.layer == "input of blocks.2.attn"
    kept = []
    hook = model.blocks[2].norm1.register_forward_hook(lambda _m, _a, out: kept.append(out))
    (gradient,) = torch.autograd.grad(model(images)[:, 3].sum(), kept)
    hook.remove()
    words, gradient = kept[0].detach()[:, 1:], gradient[:, 1:]  # B, 24, C
    want = (words * gradient.mean(1, keepdim=True)).sum(-1).clamp_min(0).unflatten(1, (4, 6))
    assert (cams.peak["both"] > 0).any()
    np.testing.assert_allclose(cams.heat["both"] * cams.peak["both"][:, None, None], want, rtol=1e-4, atol=1e-9)


def test_words_that_are_averaged_are_read_after_the_last_block(images):
    assert compute_gradcam(vit(global_pool="avg", class_token=False), images).layer == "blocks.2"


def test_map_has_its_rows_and_columns_where_the_image_has_them():
    """An image with one bright cell, and a network whose score is that cell's."""
    model = vit(global_pool="avg", class_token=False, depth=1, pos_embed="none")
    x = torch.zeros(1, 3, 16, 24)
    x[:, :, 8:12, 20:24] = 5.0  # row 2, column 5
    host = find_host(model)
    with torch.no_grad(), record_maps(host, 1) as spots:
        model(x)
    cells = spots[0].as_map(spots[0].tensor, host, (16, 24))
    odd = (cells - cells.flatten(2).median(2).values[..., None, None]).abs().sum(1)[0]
    assert divmod(int(odd.argmax()), 6) == (2, 5)


@pytest.mark.parametrize(
    ("name", "layer", "grid"),
    [
        ("resnet18", "layer4", (2, 3)),
        ("convnext_atto", "stages.3.blocks.1", (2, 3)),
        ("swin_tiny_patch4_window7_224", "layers.3.blocks.1", (2, 3)),
        ("pvt_v2_b0", "stages.3.blocks.1", (2, 3)),
        ("mobilenetv3_small_050", "blocks", (2, 3)),
    ],
)
def test_every_layout_gives_a_map_of_the_right_shape(name, layer, grid):
    small = {"img_size": (64, 96), "window_size": (2, 3), "embed_dim": 12, "depths": (1, 1, 1, 2)}
    options = small if name.startswith("swin") else {}
    model = timm.create_model(name, num_classes=5, **options).eval()
    cams = compute_gradcam(model, torch.randn(1, 3, 64, 96))
    assert cams.layer == layer
    assert cams.heat["both"].shape == (1, *grid)


def test_transformers_model_has_a_map():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=3, **sizes)
    model = transformers.ViTForImageClassification(config).eval()
    cams = compute_gradcam(model, torch.randn(2, 3, 32, 32))
    assert cams.heat["both"].shape == (2, 4, 4)
    assert "input of" in cams.layer


@pytest.mark.parametrize("fusion", ["sum", "concat", "late"])
def test_second_order_head_is_taken_apart(fusion, images):
    model = vit()
    attach(model, SecondOrderHead(fusion=fusion, num_heads=2, head_dim=4))
    cams = compute_gradcam(model, images, targets=2)
    assert list(cams.heat) == ["both", "class", "words"]
    head = model.second_order.layer
    bias = head.word_fc.bias[2].item() if fusion == "concat" else 0.0
    np.testing.assert_allclose(cams.logits["class"] + cams.logits["words"] + bias, cams.logits["both"], rtol=1e-4)


def test_parts_of_a_second_order_head_are_gradients_of_that_part_alone(images):
    """With the classifier of the words silenced, the class token's part is the whole."""
    model = vit()
    attach(model, SecondOrderHead(num_heads=2, head_dim=4))
    with torch.no_grad():
        model.second_order.layer.word_fc.weight.zero_()
    cams = compute_gradcam(model, images, targets=1)
    assert list(cams.heat) == ["both", "class"]  # the words' part has no gradient
    np.testing.assert_allclose(cams.heat["class"], cams.heat["both"], atol=1e-6)
    figures = gradcam_view(model, images, black(), targets=1)[0].figures
    assert [figure.key for figure in figures] == ["gradcam", "gradcam-class"]


def test_head_without_a_class_token_has_one_part():
    model = timm.create_model("resnet18", num_classes=3).eval()
    attach(model, SecondOrderHead(num_heads=2, head_dim=4))
    cams = compute_gradcam(model, torch.randn(1, 3, 64, 96))
    assert list(cams.heat) == ["both"]
    assert cams.heat["both"].shape == (1, 2, 3)


def test_model_is_left_as_it_was(images):
    model = vit()
    model.patch_embed.requires_grad_(False)
    with torch.no_grad():
        before = model(images)
    model.train()
    model.blocks[0].eval()
    flags = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    needed = [parameter.requires_grad for parameter in model.parameters()]
    gradcam_view(model, images, black())
    assert [(module.training, len(module._forward_hooks)) for module in model.modules()] == flags
    assert [parameter.requires_grad for parameter in model.parameters()] == needed
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not images.requires_grad
    with torch.no_grad():
        assert torch.equal(model.eval()(images), before)


def test_it_works_where_gradients_are_switched_off(images):
    model = vit()
    want = compute_gradcam(model, images).heat["both"]
    with torch.inference_mode():
        np.testing.assert_array_equal(compute_gradcam(model, images.clone()).heat["both"], want)


def test_view_names_the_class_and_the_layer(images):
    view = gradcam_view(vit(), images, black(), targets=[0, 4], classes=["a", "b", "c", "d", "e"])[1]
    assert view.numbers == {"target": 4, "class": "e", "layer": "input of blocks.2.attn"}
    assert "'e'" in view.figures[0].caption
    assert view.figures[0].numbers["grid"] == [4, 6]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 2)), "no feature map"),
        (nn.Conv2d(3, 2, 1), "not the logits"),
    ],
)
def test_model_without_a_map_or_logits_says_why(model, reason, images):
    views = gradcam_view(model, images, black())
    assert len(views) == 2
    assert reason in views[0].absent


def test_answer_that_depends_on_no_place_says_so(images):
    model = vit()
    with torch.no_grad():
        model.head.weight.zero_()
    assert "no gradient" in gradcam_view(model, images, black())[0].absent


class Headed(nn.Module):
    """Attention whose queries, B, heads, N, d, pass a norm: 16 tokens of width 16 look like a map of 16 x 16 cells."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 32, 4, 4)
        self.attn = nn.Module()
        self.attn.q_norm = nn.LayerNorm(16)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        tokens = self.proj(x).flatten(2).mT  # B, 16, 32
        heads = self.attn.q_norm(tokens.unflatten(2, (2, 16)).transpose(1, 2))
        return self.head(heads.transpose(1, 2).flatten(2).mean(1))


def test_heads_and_tokens_are_not_taken_for_rows_and_columns():
    cams = compute_gradcam(Headed().eval(), torch.randn(1, 3, 16, 16))
    assert cams.layer == "proj"
    assert cams.heat["both"].shape == (1, 4, 4)


def test_tokens_that_form_no_grid_give_a_reason_and_no_map_of_something_else():
    model = timm.create_model("crossvit_9_240", num_classes=3).eval()
    view = gradcam_view(model, torch.randn(1, 3, 240, 240), black(1, 240, 240))[0]
    assert "do not form a grid" in view.absent
    assert "pass grid=" not in view.absent


@pytest.mark.parametrize("cells", [(2, 2), (2, 3), (2, 4), (3, 3)])
def test_map_must_have_the_proportions_of_the_image(cells):
    """Strides round each side by less than one cell, so 33 x 60 pixels may well be 2 x 2 cells."""
    model = Plain().eval()
    values = torch.randn(1, 3, *cells)
    assert FeatureMap("conv", values).as_map(values, find_host(model), (33, 60)).shape == values.shape
    for far in ((2, 7), (9, 2)):
        with pytest.raises(HostError, match="do not correspond to positions in the image"):
            FeatureMap("conv", torch.randn(1, 3, *far)).as_map(torch.randn(1, 3, *far), find_host(model), (33, 60))
