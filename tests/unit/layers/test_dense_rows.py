"""The GPU's form of a dense embedding, run on the CPU in double precision, against the published order."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers import dense_rows, halves
from saccade.layers.dense_rows import pieces_by_rows, pooled_rows, pooled_transition
from saccade.layers.stem import MaxPool
from saccade.layers.token_embed import DenseBlock, DenseNetEmbed, Transition


def published(embed: DenseNetEmbed, x: Tensor) -> Tensor:
    return embed.proj(embed.blocks(embed.stem(x)))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("depth", "growth"), [(6, 4), (3, 2), (1, 3), (8, 2)])
def test_pieces_equal_the_concatenation(depth: int, growth: int) -> None:
    torch.manual_seed(0)
    block = DenseBlock(10, depth=depth, growth=growth).double()
    x = torch.randn(2, 10, 6, 5, dtype=torch.float64, requires_grad=True)
    pieces = pieces_by_rows(x, [a.conv1.weight for a in block.layers], [a.conv2 for a in block.layers])
    got, want = torch.cat(pieces, dim=1), block.concatenated(x)
    close(got, want)
    weight, wrt = torch.randn_like(want), [x, *block.parameters()]
    for a, b in zip(*(torch.autograd.grad(y, wrt, weight) for y in (got, want)), strict=True):
        close(a, b)


@pytest.mark.parametrize("depth", [1, 3, 6, 8])
def test_weights_converted_at_once_are_those_converted_one_by_one(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = DenseBlock(10, depth=depth, growth=4)
    x = torch.randn(2, 10, 6, 5)
    given = [a.conv1.weight for a in block.layers], [a.conv2 for a in block.layers]
    monkeypatch.setattr(dense_rows, "as_products_read", lambda x: x.bfloat16())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = pieces_by_rows(x, *given)
        monkeypatch.setattr(halves, "serves", lambda _: True)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
        got = pieces_by_rows(x, *given)
    assert len(got) == depth + 1
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("size", [(32, 32), (37, 50)])
def test_inference_equals_the_published_order(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    embed = shaken(DenseNetEmbed(embed_dim=8)).eval()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    monkeypatch.setattr(embed, "takes_rows", lambda _: True)
    with torch.no_grad():
        close(embed(x), published(embed, x))


@pytest.mark.parametrize(
    ("size", "stride", "change"),
    [((32, 32), 4, "none"), ((37, 50), 16, "none"), ((37, 50), 4, "no affine"), ((32, 32), 16, "no norm")],
)
def test_inference_as_compiled_equals_the_published_order(
    size: tuple[int, int], stride: int, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    embed = shaken(DenseNetEmbed(embed_dim=8, stride=stride)).eval()
    for _, transition in embed.stages:
        if change == "no affine":
            transition.norm.weight = transition.norm.bias = None
        elif change == "no norm":  # as it is where a norm has been folded into the convolution behind it
            transition.norm = nn.Identity()
            transition.conv.bias = nn.Parameter(torch.randn(len(transition.conv.weight), dtype=torch.float64))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    monkeypatch.setattr(embed, "takes_rows", lambda _: True)
    torch.compiler.reset()
    with torch.no_grad():
        close(torch.compile(embed, backend="eager", fullgraph=True)(x), published(embed, x))


def test_pieces_are_pooled_apart_where_a_compiler_would_join_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [torch.randn(2, width, 4, 6, dtype=torch.float64) for width in (64, 16, 16, 16, 16, 16, 16)]
    joined: list[int] = []
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda parts, dim: joined.append(len(parts)) or cat(parts, dim))
    pool = nn.AvgPool2d(2)
    got = pooled_rows(pieces, pool)
    assert joined == [9]
    close(got, pool(cat(pieces, 1)).permute(0, 2, 3, 1).reshape(-1, 160))


@pytest.mark.parametrize("size", [(32, 32), (19, 30)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_as_compiled_equals_the_published_order(
    size: tuple[int, int], momentum: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, plain = pair(momentum)
    monkeypatch.setattr(quick, "takes_rows", lambda _: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    compare(quick, quick, plain, size)


@pytest.mark.slow
def test_compiled_training_equals_the_published_order(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, plain = pair(0.1)
    monkeypatch.setattr(quick, "takes_rows", lambda _: True)
    torch.compiler.reset()
    compare(torch.compile(quick, backend="aot_eager", fullgraph=True), quick, plain, (32, 30))


def pair(momentum: float | None) -> tuple[DenseNetEmbed, DenseNetEmbed]:
    """Return two embeddings with the same weights."""
    torch.manual_seed(0)
    quick, plain = shaken(DenseNetEmbed(embed_dim=8, stride=4)), DenseNetEmbed(embed_dim=8, stride=4).double()
    plain.load_state_dict(quick.state_dict())
    for norm in [m for embed in (quick, plain) for m in embed.modules() if isinstance(m, nn.BatchNorm2d)]:
        norm.momentum = momentum
    return quick, plain


def compare(
    call: Callable[[Tensor], Tensor], quick: DenseNetEmbed, plain: DenseNetEmbed, size: tuple[int, int]
) -> None:
    """Compare answers, gradients and statistics of a step."""
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    got, want = call(x), published(plain, x)
    close(got, want)
    weight = torch.randn_like(want)
    for out in (got, want):
        (out * weight).sum().backward()
    for (name, a), b in zip(quick.named_parameters(), plain.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 1e-9 * (b.grad.norm() + 1e-6), name
    for a, b in zip(quick.buffers(), plain.buffers(), strict=True):
        close(a, b)


def test_a_norm_that_cannot_be_taken_apart_is_left_to_the_transition() -> None:
    transition = Transition(6, 4, halve=True)
    pieces = [torch.randn(2, 3, 4, 4) for _ in range(2)]
    assert (
        pooled_transition(pieces, transition.norm, transition.conv, transition.pool) is None
    )  # training, not compiled
    transition.norm = nn.BatchNorm2d(6, track_running_stats=False).eval()
    assert pooled_transition(pieces, transition.norm, transition.conv, transition.pool) is None
    transition.norm = nn.GroupNorm(2, 6).eval()
    assert pooled_transition(pieces, transition.norm, transition.conv, transition.pool) is None


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 9), (2, 2, 1, 1), (1, 3, 2, 5), (2, 4, 13, 6)])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pooling_gives_the_gradient_of_pytorchs(shape: tuple[int, ...], ties: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    x = (x.round() if ties else x).requires_grad_()
    got, want = MaxPool.apply(x), F.max_pool2d(x, 3, 2, 1)
    assert torch.equal(got, want)
    weight = torch.randn_like(want)
    close(*(torch.autograd.grad(y, x, weight)[0] for y in (got, want)))


def shaken(embed: DenseNetEmbed) -> DenseNetEmbed:
    """Give norms statistics and weights that are not those of a fresh one."""
    for norm in [m for m in embed.modules() if isinstance(m, nn.BatchNorm2d)]:
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
    return embed.double()
