"""Attention is heard whole and right, and what a model returns is the same to the bit."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saccade  # noqa: F401
from saccade.explanation import maps
from saccade.explanation.capture import Captured, capture
from saccade.explanation.grids import split_axes
from saccade.explanation.maps import attended_distance, cell_centres, city_block, relative_distance

SMALL = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def small_vit(**options):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **{**SMALL, **options}).eval()


def tensors(answer) -> list[Tensor]:
    if isinstance(answer, Tensor):
        return [answer]
    values = answer.values() if hasattr(answer, "values") else answer if isinstance(answer, list | tuple) else ()
    return [tensor for value in values for tensor in tensors(value)]


def check_unchanged(model, *inputs, **named) -> Captured:
    """Capture, and see that the output, and that of the next plain call, is what it was before."""
    with torch.no_grad():
        before = tensors(model(*inputs, **named))
        captured = capture(model, *inputs, **named)
        after = tensors(model(*inputs, **named))
    heard = tensors(captured.output)
    assert before
    assert all(torch.equal(a, b) for a, b in zip(before, heard, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())
    return captured


@pytest.mark.parametrize(
    ("name", "options", "heard"),
    [
        ("vit_tiny_patch16_224", SMALL, 2),
        ("deit_tiny_distilled_patch16_224", SMALL, 2),
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": (2, 1, 1, 1)}, 5),
        ("cait_xxs24_224", {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2}, 4),
        ("eva02_tiny_patch14_224", {"img_size": 56, "embed_dim": 48, "depth": 2, "num_heads": 3}, 2),
        ("maxvit_rmlp_pico_rw_256", {"img_size": 64}, 22),
        ("pvt_v2_b0", {}, 8),
        ("glnet_nano", {"img_size": 64}, None),
        ("nommer_tiny", {"img_size": 64, "depths": (1, 1, 1, 1)}, None),
        ("sot_7", {"img_size": 64}, None),
        ("t2t_vit_7", {"img_size": 64}, 7),
    ],
)
def test_output_is_bit_identical_and_attention_is_heard(name, options, heard):
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    size = options.get("img_size", 64)
    captured = check_unchanged(model, torch.randn(2, 3, size, size))
    assert len(captured.attention) == heard if heard else captured.attention
    for layer in captured.attention:
        assert layer.entropy.shape == (2, layer.windows, layer.heads, layer.queries)
        assert (layer.entropy <= layer.bound + 1e-5).all()
        torch.testing.assert_close(layer.received.sum(-1), torch.ones(2, layer.windows, layer.heads))


@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto", "mixer_s32_224"])
def test_model_without_attention_has_none(name):
    model = timm.create_model(name, num_classes=3).eval()
    side = 224 if "mixer" in name else 64
    captured = check_unchanged(model, torch.randn(1, 3, side, side))
    assert captured.attention == []
    assert captured.unheard == []


@pytest.mark.parametrize("fused", [True, False])
def test_map_is_softmax_of_scaled_products(fused):
    model = small_vit()
    for block in model.blocks:
        block.attn.fused_attn = fused
    images = torch.randn(2, 3, 64, 64)
    inputs = []
    hook = model.blocks[0].attn.register_forward_hook(lambda _m, args, _o: inputs.append(args[0]))
    with torch.no_grad():
        captured = capture(model, images, keep=1)
    hook.remove()
    q, k, _ = model.blocks[0].attn.qkv(inputs[0]).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.transpose(-2, -1) / 4).softmax(-1)  # B, heads, N, N; heads are 16 wide
    layer = captured.attention[0]
    assert layer.name == "blocks.0.attn"
    assert layer.fused is fused
    assert layer.scale == (0.25 if fused else None)
    torch.testing.assert_close(layer.weights, expected[1:], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(layer.received[:, 0], expected.mean(2), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(layer.first[:, 0], expected[:, :, 0], atol=1e-6, rtol=1e-5)
    assert layer.grid.prefix == (1, 1)
    assert layer.grid.key_grid == (4, 4)


class Fused(nn.Module):
    """A call of fused attention, as given."""

    num_heads = 4

    def forward(self, q, k, v, **named):
        return F.scaled_dot_product_attention(q, k, v, **named)


def test_mask_causality_scale_and_shared_keys_are_counted():
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[..., 0] = True
    bias = torch.randn(4, 5, 5)
    logits = q @ k.mT
    cases = [
        ({"attn_mask": mask}, logits / math.sqrt(8) + torch.zeros(2, 1, 5, 5).masked_fill(~mask, -torch.inf)),
        ({"attn_mask": bias, "scale": 0.5}, logits * 0.5 + bias),
        ({"is_causal": True}, logits / math.sqrt(8) + torch.full((5, 5), -torch.inf).triu(1)),
    ]
    for named, expected in cases:
        captured = capture(Fused(), q, k, k, keep=0, **named)
        torch.testing.assert_close(captured.attention[0].weights[0], expected.softmax(-1)[0])
    few = k[:, :2]
    captured = capture(Fused(), q, few, few, keep=0, enable_gqa=True)
    expected = q @ few.repeat_interleave(2, 1).mT / math.sqrt(8)
    torch.testing.assert_close(captured.attention[0].weights[0], expected.softmax(-1)[0])


def test_rows_measured_in_pieces_give_the_same_numbers(monkeypatch):
    model, images = small_vit(), torch.randn(2, 3, 64, 64)
    whole = capture(model, images, keep=0).attention
    monkeypatch.setattr(maps, "CHUNK", 3 * 2 * 2 * 17)  # three queries at a time
    pieces = capture(model, images, keep=0).attention
    for one, other in zip(whole, pieces, strict=True):
        for name in ("entropy", "jacobian", "attended", "relative", "received", "first", "weights"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-6, rtol=1e-5)


def test_distances_of_a_models_maps_are_those_of_the_definitions():
    model, images = small_vit(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(20)  # so that attention is not uniform
        captured = capture(model, images, keep=1)
    for layer in captured.attention:
        words = layer.weights[0, :, 1:, 1:]  # heads, 16, 16: without the class token
        corners, centres = cell_centres((4, 4), ends=True), cell_centres((4, 4))
        paper = relative_distance(words, city_block(corners, corners))
        torch.testing.assert_close(layer.relative[1, 0], paper)
        plain = attended_distance(words, city_block(centres, centres))
        torch.testing.assert_close(layer.attended[1, 0], plain)


def test_windows_are_counted_and_have_their_own_grid():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(1, 1), num_heads=(3, 3), num_classes=2
    ).eval()
    layers = capture(model, torch.randn(2, 3, 56, 56)).attention
    assert [(layer.grid.kind, layer.windows, layer.grid.key_grid) for layer in layers] == [
        ("windows", 4, (7, 7)),
        ("tokens", 1, (7, 7)),
    ]
    assert layers[0].bound == pytest.approx(math.log(49))


def test_clustering_and_nomination_are_not_called_attention():
    glnet = timm.create_model("glnet_nano", img_size=64).eval()
    captured = capture(glnet, torch.randn(1, 3, 64, 64))
    assert {other.what for other in captured.other} == {"the clustering of a map into slots"}
    slots = [layer for layer in captured.attention if layer.grid.kind == "slots"]
    assert slots
    assert all(layer.attended is None and "slots" in layer.grid.trouble for layer in slots)
    nommer = timm.create_model("nommer_tiny", img_size=64, depths=(1, 1, 1, 1), nomination="soft").eval()
    captured = capture(nommer, torch.randn(1, 3, 64, 64))
    assert {other.what for other in captured.other} == {"the scores of a nomination"}


def test_attention_among_channels_is_not_attention_among_tokens():
    model = timm.create_model("xcit_nano_12_p16_224", img_size=64).eval()
    captured = check_unchanged(model, torch.randn(1, 3, 64, 64))
    assert {other.what for other in captured.other} == {"attention over channels, not over tokens"}
    assert all("cls_attn" in layer.name for layer in captured.attention)
    assert all("class token" in layer.grid.trouble for layer in captured.attention)


def test_attention_without_a_softmax_is_named_as_unheard():
    model = timm.create_model("t2t_vit_7", img_size=64).eval()
    captured = capture(model, torch.randn(1, 3, 64, 64))
    assert captured.unheard == ["patch_embed.split1.performer", "patch_embed.split2.performer"]


def test_pytorch_encoder_keeps_its_fast_path_and_is_heard():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 6, 16)
    captured = check_unchanged(model, x)
    assert [layer.name for layer in captured.attention] == ["layers.0.self_attn", "layers.1.self_attn"]
    with torch.no_grad():
        attention = model.layers[0].self_attn
        expected = attention(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(captured.attention[0].received[:, 0], expected.mean(2))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_models_are_heard_and_unchanged(implementation):
    transformers = pytest.importorskip("transformers")
    shared = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    vit = transformers.ViTConfig(**shared, image_size=32, patch_size=8, attn_implementation=implementation)
    captured = check_unchanged(transformers.ViTForImageClassification(vit).eval(), torch.randn(2, 3, 32, 32))
    assert [layer.grid.key_grid for layer in captured.attention] == [(4, 4), (4, 4)]
    assert all(layer.fused is (implementation == "sdpa") for layer in captured.attention)
    ids, mask = torch.randint(0, 50, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[0, 5:] = 0
    bert = transformers.BertConfig(**shared, vocab_size=50, attn_implementation=implementation)
    model = transformers.BertForSequenceClassification(bert).eval()
    captured = check_unchanged(model, input_ids=ids, attention_mask=mask)
    assert [layer.attended for layer in captured.attention] == [None, None]
    assert (captured.attention[0].received[0, ..., 5:] < 1e-6).all()  # nothing looks at padding
    gpt = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=50,
        n_positions=20,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=implementation,
    )
    captured = check_unchanged(transformers.GPT2Model(gpt).eval(), input_ids=ids)
    assert (captured.attention[0].entropy[..., 0] < 1e-6).all()  # the first word sees itself alone


def test_gradients_pass_as_without_listening():
    model, images = small_vit(), torch.randn(2, 3, 64, 64)
    model(images).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    capture(model, images).output.sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))


def test_dropout_draws_the_same_numbers():
    model = small_vit(proj_drop_rate=0.2, attn_drop_rate=0.2).train()
    images = torch.randn(2, 3, 64, 64)
    torch.manual_seed(1)
    plain = model(images)
    torch.manual_seed(1)
    assert torch.equal(capture(model, images).output, plain)


def test_compiled_model_is_heard_as_it_was_before():
    model, images = small_vit(), torch.randn(2, 3, 64, 64)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(images)
        captured = capture(compiled, images)
        assert torch.equal(captured.output, model(images))
    assert [layer.name for layer in captured.attention] == ["_orig_mod.blocks.0.attn", "_orig_mod.blocks.1.attn"]


def test_hooks_are_gone_after_an_error():
    model = small_vit()
    with pytest.raises(AssertionError):
        capture(model, torch.randn(1, 3, 50, 50))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("lead", "heads", "expected"),
    [
        ((2, 4), 4, (2, 1, 4)),
        ((2, 4), None, (2, 1, 4)),
        ((18, 4), 4, (2, 9, 4)),
        ((8,), 4, (2, 1, 4)),
        ((72,), 4, (2, 9, 4)),
        ((2, 36), 4, (2, 9, 4)),
        ((8, 9), 4, (2, 9, 4)),
        ((2, 9, 4), 4, (2, 9, 4)),
        ((2, 4, 9), 4, (2, 9, 4)),
        ((3, 4), 4, None),
        ((2, 3, 5), None, None),
    ],
)
def test_axes_are_told_apart(lead, heads, expected):
    axes = split_axes((*lead, 5, 7), batch=2, heads=heads)
    if expected is None:
        assert axes is None
    else:
        assert axes.apply(torch.zeros(*lead, 5, 7)).shape == (*expected, 5, 7)


def test_tokens_that_ask_for_objects_have_no_place():
    """A hundred of them would pass for a grid of ten by ten."""
    transformers = pytest.importorskip("transformers")
    shared = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 32}
    yolos = transformers.YolosConfig(**shared, image_size=[64, 64], patch_size=16, num_detection_tokens=9)
    (layer,) = check_unchanged(transformers.YolosForObjectDetection(yolos).eval(), torch.randn(1, 3, 64, 64)).attention
    assert "object queries" in layer.grid.trouble
    assert layer.attended is None
    body = transformers.ResNetConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 8, 8], out_features=["stage4"])
    detr = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=body,
        encoder_layers=1,
        decoder_layers=1,
        d_model=32,
        num_queries=100,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    with torch.no_grad():
        heard = capture(transformers.DetrForObjectDetection(detr).eval(), torch.randn(1, 3, 128, 128)).attention
    assert [(layer.grid.query_grid, layer.grid.key_grid) for layer in heard] == [
        ((4, 4), (4, 4)),  # the encoder, among places
        (None, None),  # the decoder, among objects
        (None, (4, 4)),  # from objects to places
    ]
    assert [layer.attended is None for layer in heard] == [False, True, True]
