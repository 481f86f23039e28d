"""Replacements of SoT's dense embedding, run on the CPU in double precision, against the plain one."""

import copy
import pickle

import pytest
import torch
from torch import nn

from saccade import kernels
from saccade.kernels.modules import dense_embed, dense_embed_cpu
from saccade.kernels.modules.dense_embed import FusedDenseNetEmbed, pieces_by_rows, pooled_rows, pooled_transition
from saccade.kernels.modules.dense_embed_cpu import DenseNetEmbedInParts
from saccade.layers.token_embed import DenseBlock, DenseNetEmbed, Transition
from saccade.models.sot import SoT

REPLACEMENTS = [FusedDenseNetEmbed, DenseNetEmbedInParts]
CASES = [(16, 48, 40), (16, 33, 47), (8, 25, 31), (16, 15, 15), (4, 18, 17)]


@pytest.fixture(autouse=True)
def forced(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(dense_embed_cpu, "ROWS", 300)  # one image in the first stage, several in the last
    monkeypatch.setattr(FusedDenseNetEmbed, "takes", lambda *_: True)


def pair(replacement, stride=16, *, training=True, momentum=0.1):
    """Return an embedding and its replacement, with the same weights and statistics."""
    torch.manual_seed(0)
    plain = DenseNetEmbed(embed_dim=8, stride=stride).double().train(training)
    for norm in [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]:
        norm.momentum = momentum
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
    quick = copy.deepcopy(plain)
    quick.__class__ = replacement
    return quick, plain


def images(height, width, count=3):
    return torch.randn(count, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def near(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def step(call, embed, x):
    """Return tokens, all gradients and running statistics of a training step."""
    x = x.clone().requires_grad_()
    tokens = call(x)
    (tokens.square() * torch.linspace(1, 2, tokens.numel()).view_as(tokens)).sum().backward()
    return [tokens, x.grad, *(p.grad for p in embed.parameters()), *embed.buffers()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("stride", "height", "width"), CASES)
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_gradients_and_running_statistics_are_the_same(replacement, stride, height, width, training):
    quick, plain = pair(replacement, stride, training=training)
    x = images(height, width)
    for a, b in zip(step(quick, quick, x), step(plain, plain, x), strict=True):
        near(a, b)


@pytest.mark.parametrize(("stride", "height", "width"), CASES)
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_inference_gives_the_same_tokens(replacement, stride, height, width):
    quick, plain = pair(replacement, stride, training=False)
    x = images(height, width)
    given = x.clone()
    with torch.inference_mode():
        assert quick.takes(x)
        near(quick(x), plain(x))
    assert torch.equal(x, given)


@pytest.mark.parametrize("training", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_compiled_it_is_the_same(replacement, training):
    quick, plain = pair(replacement, 4, training=training)
    call, x = torch.compile(quick, backend="aot_eager", fullgraph=True), images(32, 30, 2)
    if not training:
        with torch.no_grad():
            near(call(x), plain(x))
        return
    for a, b in zip(step(call, quick, x), step(plain, plain, x), strict=True):
        near(a, b)


@pytest.mark.parametrize("size", [(32, 32), (19, 30)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_takes_norms_apart_where_it_is_compiled(size, momentum, monkeypatch):
    quick, plain = pair(FusedDenseNetEmbed, 4, momentum=momentum)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(Transition, "forward", None)
    got = step(quick, quick, images(*size))
    monkeypatch.undo()
    for a, b in zip(got, step(plain, plain, images(*size)), strict=True):
        near(a, b)


@pytest.mark.parametrize(("stride", "change"), [(4, "none"), (4, "no affine"), (16, "no norm")])
def test_inference_folds_norms_where_it_is_compiled(stride, change, monkeypatch):
    quick, plain = pair(FusedDenseNetEmbed, stride, training=False)
    bias = torch.randn(128, dtype=torch.float64)
    for transition in [m for embed in (quick, plain) for m in embed.modules() if isinstance(m, Transition)]:
        if change == "no affine":
            transition.norm.weight = transition.norm.bias = None
        elif change == "no norm":  # as it is where a norm has been folded into the convolution behind it
            transition.norm, transition.conv.bias = nn.Identity(), nn.Parameter(bias)
    x = images(37, 50, 2)
    with torch.no_grad():
        want = plain(x)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        near(quick(x), want)


@pytest.mark.parametrize(("depth", "growth"), [(6, 4), (3, 2), (1, 3), (8, 2)])
def test_pieces_are_the_blocks_output(depth, growth):
    torch.manual_seed(0)
    block = DenseBlock(10, depth=depth, growth=growth).double()
    x = torch.randn(2, 10, 6, 5, dtype=torch.float64, requires_grad=True)
    pieces, want = pieces_by_rows(x, block), block(x)
    near(torch.cat(pieces, dim=1), want)
    assert [piece.shape[1] for piece in pieces] == [10] + [growth] * depth


@pytest.mark.parametrize("depth", [1, 3, 6, 8])
def test_weights_converted_at_once_are_those_converted_one_by_one(depth, monkeypatch):
    torch.manual_seed(0)
    block, x = DenseBlock(10, depth=depth, growth=4), torch.randn(2, 10, 6, 5)
    monkeypatch.setattr(dense_embed, "as_products_read", lambda x: x.bfloat16())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = pieces_by_rows(x, block)
        monkeypatch.setattr(dense_embed, "converts", lambda _: True)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
        got = pieces_by_rows(x, block)
    assert len(got) == depth + 1
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_pieces_are_pooled_apart_where_a_compiler_would_join_them(monkeypatch):
    pieces = [torch.randn(2, width, 4, 6, dtype=torch.float64) for width in (64, 16, 16, 16, 16, 16, 16)]
    joined: list[int] = []
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda parts, dim: joined.append(len(parts)) or cat(parts, dim))
    pool = nn.AvgPool2d(2)
    got = pooled_rows(pieces, pool)
    assert joined == [9]
    near(got, pool(cat(pieces, 1)).permute(0, 2, 3, 1).reshape(-1, 160))


def test_a_norm_that_cannot_be_taken_apart_is_left_to_the_transition():
    transition = Transition(6, 4, halve=True)
    pieces = [torch.randn(2, 3, 4, 4) for _ in range(2)]
    assert pooled_transition(pieces, transition) is None  # training, not compiled
    transition.norm = nn.BatchNorm2d(6, track_running_stats=False).eval()
    assert pooled_transition(pieces, transition) is None
    transition.norm = nn.GroupNorm(2, 6).eval()
    assert pooled_transition(pieces, transition) is None


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("momentum", [0.3, None])
def test_statistics_of_several_batches_are_tracked_as_a_norm_does(replacement, momentum):
    quick, plain = pair(replacement, momentum=momentum)
    for scale in (1.0, 2.0, 3.0):
        for embed in (quick, plain):
            embed(images(32, 32) * scale)
    for a, b in zip(quick.buffers(), plain.buffers(), strict=True):
        near(a, b)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_norms_that_keep_still_use_what_they_have_kept(replacement):
    quick, plain = pair(replacement)
    for norm in [m for embed in (quick, plain) for m in embed.modules() if isinstance(m, nn.BatchNorm2d)]:
        norm.eval()
    near(quick(images(32, 32)), plain(images(32, 32)))
    for a, b in zip(quick.buffers(), plain.buffers(), strict=True):
        near(a, b)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_who_listens_inside_hears_every_layer(replacement):
    quick, plain = pair(replacement, training=False)
    heard = []
    quick.blocks[0].layers[1].conv1.register_forward_hook(lambda *_: heard.append(1))
    with torch.no_grad():
        assert torch.equal(quick(images(32, 32)), plain(images(32, 32)))
    assert heard == [1]


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_transitions_with_other_norms_are_applied_to_the_whole_map(norm):
    quick, plain = pair(DenseNetEmbedInParts, training=False)
    x = images(32, 32)
    for embed in (quick, plain):
        width = embed.blocks[0].width
        embed.blocks[1].norm = {
            "group": nn.GroupNorm(4, width),
            "batch": nn.BatchNorm2d(width, track_running_stats=False),
            "none": nn.Identity(),
        }[norm].double()
    with torch.no_grad():
        assert quick.takes(x)
        near(quick(x), plain(x))


def test_mixed_precision_runs_the_plain_embedding():
    quick, _ = pair(DenseNetEmbedInParts)
    x = images(32, 32)
    assert quick.takes(x)
    assert not quick.takes(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert not quick.takes(x)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_norms_inside_dense_layers_are_refused(replacement):
    assert replacement.refuses(DenseNetEmbed()) is None
    assert "batch norms" in replacement.refuses(DenseNetEmbed(norm=True))


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_frozen_weights_get_no_gradient_and_the_others_theirs(replacement):
    found = []
    for embed in pair(replacement):
        embed.stem.requires_grad_(False)
        embed.blocks[0].layers[2].requires_grad_(False)
        embed(images(32, 32)).square().sum().backward()
        found.append([p.grad for p in embed.parameters()])
    for quick, plain in zip(*found, strict=True):
        assert (quick is None) == (plain is None)
        if plain is not None:
            near(quick, plain)


def test_an_empty_batch_gives_no_tokens():
    embed, _ = pair(DenseNetEmbedInParts, training=False)
    with torch.no_grad():
        assert embed(images(32, 32, 0)).shape == (0, 8, 2, 2)


def test_swapped_in_and_undone_a_model_is_what_it_was():
    torch.manual_seed(0)
    model = SoT(img_size=32, embed_dim=16, depth=1, num_heads=2, num_classes=3, cov_heads=2, cov_dim=4).eval()
    x, names = torch.randn(2, 3, 32, 32), list(model.state_dict())
    with torch.no_grad():
        want = model(x)
        handle = kernels.apply(model, "infer", "dense_cpu")
        assert handle.names == ("dense_cpu",)
        assert type(model.patch_embed) is DenseNetEmbedInParts
        assert list(model.state_dict()) == names
        torch.testing.assert_close(model(x), want)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(x), model(x))
        handle.undo()
        assert type(model.patch_embed) is DenseNetEmbed
        assert torch.equal(model(x), want)
