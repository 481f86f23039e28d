import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models import group_parameters
from torch import Tensor, nn
from torch.export import Dim, export

from saccade.models import cvt
from saccade.models.cvt import ChannelNorm, ConvAttention, CvT
from support.golden import case, cases, listen, relative_error, strided


def tiny(**kwargs) -> CvT:
    torch.manual_seed(0)
    options = {"dims": (8, 16, 24), "depths": (1, 1, 2), "num_heads": (1, 2, 3), "head_dim": 8, "num_classes": 5}
    return CvT(**(options | kwargs))


def published(c) -> CvT:
    model = timm.create_model("cvt_13")
    model.load_state_dict(c.state_dict())
    return model.eval()


@pytest.mark.parametrize("c", cases("cvt_13"), ids=lambda c: c.id)
def test_published_logits_in_float32(c):
    with torch.inference_mode():
        assert relative_error(published(c)(c.input()), c.logits) < 1e-4


def test_published_logits_and_features_in_float64():
    c = case("cvt_13", "224")
    model = published(c).double()
    inside = {  # B, H, W, C
        "s0.norm": "stages.0.norm",
        "s0.b0.attn": "stages.0.blocks.0.attn",
        "s1.b1.ffn": "stages.1.blocks.1.mlp",
        "s2.b9.attn": "stages.2.blocks.9.attn",
    }
    maps = {"s1.embed": "stages.1.embed", "s0.out": "stages.0", "s1.out": "stages.1", "s2.out": "stages.2"}
    heard = listen(model, *inside.values(), *maps.values())
    with torch.inference_mode():
        assert relative_error(model(c.input().double()), c.logits) < 1e-9
    for tap, name in inside.items():
        assert relative_error(strided(heard[name].permute(0, 3, 1, 2)), c.feature(tap)) < 1e-9, tap
    for tap, name in maps.items():
        assert relative_error(strided(heard[name]), c.feature(tap)) < 1e-9, tap


def test_size_is_the_papers():
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = timm.create_model("cvt_13").eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == 20_593_706 - 657_410  # published less its localization head
    assert counter.get_total_flops() / 2e9 == pytest.approx(4.5, rel=0.02)


def direct_norm(x: Tensor, norm: ChannelNorm) -> Tensor:
    """Over the channels of B, C, H, W."""
    mean, std = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True).sqrt()
    return (x - mean) / (std + 1e-5) * norm.weight[:, None, None] + norm.bias[:, None, None]


def direct_attention(x: Tensor, m: ConvAttention, stride: int) -> Tensor:
    """On B, C, H, W, with 1x1 convolutions and the attention matrix spelled out."""

    def project(x: Tensor, p: nn.Module, stride: int) -> Tensor:
        x = F.conv2d(x, p.conv.weight, stride=stride, padding=1, groups=x.shape[1])
        x = F.batch_norm(x, p.norm.running_mean, p.norm.running_var, p.norm.weight, p.norm.bias, eps=1e-5)
        return F.conv2d(x, p.proj.weight[..., None, None])

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(1, (m.num_heads, m.head_dim)).flatten(3)  # B, heads, head_dim, HW

    q = heads(project(x, m.q, 1))
    k, v = (heads(t) for t in project(x, m.kv, stride).chunk(2, dim=1))
    weights = (torch.einsum("bhdi,bhdj->bhij", q, k) * m.head_dim**-0.5).softmax(-1)
    y = torch.einsum("bhij,bhdj->bhdi", weights, v).flatten(1, 2).unflatten(2, x.shape[2:])
    return F.conv2d(y, m.proj.weight[..., None, None], m.proj.bias)


def attention(kv_stride: int) -> ConvAttention:
    torch.manual_seed(0)
    m = ConvAttention(6, num_heads=2, head_dim=4, kv_stride=kv_stride, drop_rate=0.0).double().eval()
    for norm in (m.q.norm, m.kv.norm):
        nn.init.normal_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 1.5)
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    return m


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 3), (1, 1)])
@pytest.mark.parametrize("kv_stride", [1, 2, 3])
def test_attention_equals_the_direct_form_with_gradients(size, kv_stride):
    m = attention(kv_stride)
    x = torch.randn(2, 6, *size, dtype=torch.float64, requires_grad=True)
    fast = m(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    slow = direct_attention(x, m, kv_stride)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    weights = torch.randn_like(slow)
    inputs = [x, *m.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((fast * weights).sum(), inputs),
        torch.autograd.grad((slow * weights).sum(), inputs),
        rtol=0,
        atol=1e-11,
    )


def test_attention_keeps_less_memory_than_the_direct_form():
    def saved(forward) -> int:
        sizes: dict[int, int] = {}
        kept: list[Tensor] = []

        def pack(t: Tensor) -> Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            kept.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            forward()
        return sum(sizes.values())

    m = attention(2).float()
    x = torch.randn(1, 6, 24, 24, requires_grad=True)
    fast = saved(lambda: m(x.permute(0, 2, 3, 1)))
    assert fast < 0.5 * saved(lambda: direct_attention(x, m, 2))


@pytest.mark.parametrize("channels_last", [False, True])
def test_attention_kernel_gets_heads_with_contiguous_channels(monkeypatch, channels_last):
    seen = []

    def spy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.extend((q, k, v))
        return F.scaled_dot_product_attention(q, k, v)

    monkeypatch.setattr(cvt, "F", type("F", (), {"scaled_dot_product_attention": staticmethod(spy)}))
    model, x = tiny().eval(), torch.randn(2, 3, 64, 48)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert len(seen) == 12
    assert all(t.stride(-1) == 1 for t in seen)  # else fused kernels copy it or are not used at all
    assert all(m.is_contiguous(memory_format=torch.channels_last) for m in maps)


def test_norm_adds_eps_to_the_standard_deviation():
    norm = ChannelNorm(6).double()
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = (1e-5 * torch.randn(2, 6, 3, 4, dtype=torch.float64)).requires_grad_()  # as small as eps: its place shows
    fast, slow = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), direct_norm(x, norm)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(slow)
    got, want = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (fast, slow))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * want.abs().max().item())


def test_norm_of_equal_channels_has_a_finite_gradient():
    norm, x = ChannelNorm(6), torch.full((1, 2, 2, 6), 3.0, requires_grad=True)
    y = norm(x)
    assert torch.equal(y, torch.zeros_like(y))
    y.sum().backward()
    assert x.grad.isfinite().all()


def test_norm_of_large_float16_values_does_not_overflow():
    x = 3e4 * torch.randn(4, 6).clamp(-2, 2)
    got = ChannelNorm(6).half()(x.half())
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), ChannelNorm(6)(x.half().float()), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [(1, 1), (2, 7), (20, 20), (33, 97), (64, 64)])
def test_maps_of_any_size_halve_rounding_up(size):
    model = tiny().eval()
    final, maps = model.forward_intermediates(torch.randn(1, 3, *size))
    for index, stride in enumerate((4, 8, 16)):
        assert maps[index].shape == (1, (8, 16, 24)[index], -(-size[0] // stride), -(-size[1] // stride))
    assert torch.equal(final, maps[-1])  # there is no final norm
    assert model(torch.randn(1, 3, *size)).isfinite().all()


def test_features_only_gives_three_maps():
    net = timm.create_model("cvt_13", dims=(8, 8, 16), depths=(1, 1, 1), num_heads=(1, 1, 1), features_only=True)
    assert net.feature_info.reduction() == [4, 8, 16]
    assert net.feature_info.channels() == [8, 8, 16]
    assert [f.shape[2:] for f in net(torch.randn(2, 3, 64, 96))] == [(16, 24), (8, 12), (4, 6)]


def test_pooling_reads_what_it_says():
    model, x = tiny().eval(), torch.randn(2, 3, 64, 64)
    final = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(final, pre_logits=True), final.mean((2, 3)))
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), final)


def test_options_reach_their_layers():
    model = tiny(drop_rate=0.2, drop_path_rate=0.6, mlp_ratio=(1, 2, 3), kv_stride=3, head_dim=4)
    first, last = model.stages[0].blocks[0], model.stages[2].blocks[1]
    assert isinstance(first.drop_path, nn.Identity)
    assert last.drop_path.drop_prob == pytest.approx(0.6)
    assert model.stages[1].blocks[0].drop_path.drop_prob == pytest.approx(0.2)
    assert (last.attn.drop.p, last.mlp.drop1.p, last.mlp.drop2.p) == (0.2, 0.2, 0.2)
    assert [stage.blocks[0].mlp.fc1.out_features for stage in model.stages] == [8, 32, 72]
    assert last.attn.kv.conv.stride == (3, 3)
    assert last.attn.q.conv.stride == (1, 1)
    assert last.attn.proj.in_features == 12


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"global_pool": "token"}, "global_pool='token' was given; allowed are 'avg' and ''"),
        ({"global_pool": ""}, "global_pool='' was given with num_classes=5"),
        ({"depths": (1, 1)}, "different numbers of stages"),
        ({"mlp_ratio": (4, 4)}, "different numbers of stages"),
        ({"kv_stride": 0}, "kv_stride=0 was given; it must be 1 or more"),
    ],
)
def test_bad_values_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        tiny(**kwargs)


def test_convert_renames_drops_the_localization_head_and_passes_the_unknown():
    theirs = case("cvt_13", "224").state_dict() | {"layers.0.9.surprise": torch.zeros(1)}
    before = dict(theirs)
    with torch.device("meta"):
        model = timm.create_model("cvt_13")
    ours = model.convert(theirs)
    assert set(ours) == set(model.state_dict()) | {"layers.0.9.surprise"}
    assert all(ours[key].shape == value.shape for key, value in model.state_dict().items())
    assert theirs.keys() == before.keys()
    assert all(theirs[key] is before[key] for key in before)
    again = model.convert(ours)
    assert again.keys() == ours.keys()
    assert all(again[key] is ours[key] for key in ours)


def test_layers_for_learning_rate_decay_follow_the_forward_order():
    model = tiny()
    groups = group_parameters(model, model.group_matcher(), reverse=True)
    assert groups["stages.0.embed.weight"] == 0
    order = [groups[f"stages.{name}.weight"] for name in ("0.norm", "0.blocks.0.norm1", "1.blocks.0.norm1")]
    order += [groups[f"stages.2.blocks.{i}.norm1.weight"] for i in (0, 1)] + [groups["head.weight"]]
    assert order == sorted(set(order))
    assert groups["stages.1.embed.weight"] == groups["stages.1.blocks.0.norm1.weight"]


def test_checkpointing_gives_the_same_gradients_with_drop_path():
    def gradients(recompute: bool) -> list[Tensor]:
        model = tiny(drop_path_rate=0.5, drop_rate=0.1).train()
        model.set_grad_checkpointing(recompute)
        torch.manual_seed(1)
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    x = torch.randn(4, 3, 48, 48)
    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_to_single(dtype):
    model, x = tiny().eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = model(x)
        with torch.autocast("cpu", dtype):
            assert relative_error(model(x), want) < 0.03
        assert relative_error(model.to(dtype)(x.to(dtype)), want) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("training", [False, True])
def test_compiles_as_one_graph(backend, training):
    model, x = tiny(depths=(1, 1, 1)).train(training), torch.randn(2, 3, 64, 64)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()


@pytest.mark.slow
def test_exported_program_serves_other_sizes():
    model = tiny(depths=(1, 1, 1)).eval()
    sides = {2: Dim("h", min=33, max=2048), 3: Dim("w", min=33, max=2048)}
    program = export(model, (torch.randn(2, 3, 64, 80),), dynamic_shapes=({0: Dim("b", min=1, max=64), **sides},))
    for shape in [(1, 3, 37, 51), (3, 3, 224, 100), (1, 3, 33, 35), (2, 3, 64, 80)]:
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-6)
