from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers.token_embed import DenseBlock, DenseNetEmbed, Transition
from saccade.layers.token_embed_ablations import (
    TOKEN_EMBEDS,
    InceptionEmbed,
    LinearEmbed,
    NonLocal,
    NonLocalEmbed,
    ResNetEmbed,
)
from saccade.models.sot import SoT
from support.golden import part, part_state_dict, relative_error, strided, tensor

PUBLISHED: list[tuple[str, type[nn.Module], int]] = [
    ("ResNet", ResNetEmbed, 224),
    ("ResNet", ResNetEmbed, 112),
    ("Inception", InceptionEmbed, 224),
    ("Inception", InceptionEmbed, 112),
    ("DenseNet", DenseNetEmbed, 224),
    ("DenseNet", DenseNetEmbed, 112),
    ("Non-local", NonLocalEmbed, 112),
    ("Naive_linear", LinearEmbed, 224),
    ("Naive_linear", LinearEmbed, 112),
]


def images(*size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


def load(module: nn.Module, record: dict) -> nn.Module:
    """Give the module a published embedding's weights, renamed as the model does it."""
    official = {f"visual_tokens.{key}": value for key, value in part_state_dict(record).items()}
    weights = SoT(embed_dim=8, depth=1, num_heads=1, token_embed="linear").convert(official)
    module.load_state_dict({key.removeprefix("patch_embed."): value for key, value in weights.items()})
    return module.double().eval()


@pytest.mark.parametrize(("name", "cls", "size"), PUBLISHED)
def test_matches_the_published_embedding(name: str, cls: Callable[..., nn.Module], size: int) -> None:
    record, want = part("sot_parts", f"embed.{name}.{size}")
    weights = part("sot_parts", f"embed.{name}.224")[0] if isinstance(record["state_dict"], str) else record
    embed = load(cls(embed_dim=256, stride=size // 14), weights)
    with torch.no_grad():
        tokens = embed(tensor(record["input_key"], [1, 3, size, size]).double()).flatten(2).transpose(1, 2)
    assert list(tokens.shape) == record["out_shape"]
    assert relative_error(strided(tokens, 512), want["slice"]) < 1e-9
    assert sum(p.numel() for p in embed.parameters()) == record["params"]


def test_matches_the_published_fine_grid() -> None:
    record, want = part("sot_parts", "embed_large.DenseNet.224")
    embed = load(DenseNetEmbed(embed_dim=96, stride=4), record)
    with torch.no_grad():
        tokens = embed(tensor(record["input_key"], [1, 3, 224, 224]).double()).flatten(2).transpose(1, 2)
    assert list(tokens.shape) == record["out_shape"]
    assert relative_error(strided(tokens, 512), want["slice"]) < 1e-9


@pytest.mark.parametrize("kind", TOKEN_EMBEDS)
@pytest.mark.parametrize("stride", [4, 8, 16])
def test_grid_tells_the_size_of_the_map(kind: str, stride: int) -> None:
    embed = TOKEN_EMBEDS[kind](embed_dim=4, stride=stride).eval()
    for size in [(64, 64), (37, 50), (31, 33), (20, 20), (15, 16), (3, 70), (1, 1)]:
        with torch.no_grad():
            assert embed(images(*size, batch=1)).shape[2:] == embed.grid(*size)


class TestDenseNet:
    def test_every_layer_reads_all_before_it(self) -> None:
        block = DenseBlock(10, depth=3, growth=4)
        x = torch.randn(2, 10, 5, 6)
        out = block(x)
        assert out.shape[1] == block.width == 22
        assert torch.equal(out[:, :10], x)
        for index, layer in enumerate(block.layers):
            start = 10 + 4 * index
            assert torch.equal(out[:, start : start + 4], layer(out[:, :start].contiguous()))

    def test_batch_norm_adds_the_parameters_of_newer_timm(self) -> None:
        with_norm, without = (sum(p.numel() for p in DenseNetEmbed(norm=n).parameters()) for n in (True, False))
        assert with_norm - without == 6432

    def test_images_that_would_vanish_are_padded_with_nothing(self) -> None:
        embed = DenseNetEmbed(embed_dim=4).eval()
        x = images(9, 12)
        with torch.no_grad():
            assert torch.equal(embed(x), embed(F.pad(x, (0, 3, 0, 6))))

    def test_images_that_do_not_vanish_are_not_padded(self) -> None:
        embed = DenseNetEmbed(embed_dim=4).eval()
        x = images(31, 31)  # 16 after the stem, 2 after the transitions
        with torch.no_grad():
            torch.testing.assert_close(embed(x), embed.proj(embed.blocks(embed.stem(x))))

    def test_transition_keeps_the_size_unless_it_halves(self) -> None:
        x = torch.randn(2, 6, 5, 5)
        assert Transition(6, 4, halve=True)(x).shape == (2, 4, 2, 2)
        assert Transition(6, 4, halve=False)(x).shape == (2, 4, 5, 5)


class TestNonLocal:
    def test_equals_attention_written_out(self) -> None:
        block = NonLocal(5, 6, inner=4).double().eval()
        nn.init.normal_(block.out.weight)
        x = images(4, 3).double().repeat(1, 2, 1, 1)[:, :5]
        query, key, value = (f(x).flatten(2) for f in (block.theta, block.phi, block.g))
        weight = torch.einsum("bci,bcj->bij", query, key).softmax(-1)
        gathered = torch.einsum("bij,bcj->bci", weight, value).view(2, 4, 4, 3)
        assert torch.allclose(block(x), block.norm(block.out(gathered) + block.shortcut(x)))

    def test_starts_as_its_shortcut(self) -> None:
        block = NonLocal(5, 6).eval()
        x = torch.randn(2, 5, 4, 3)
        assert torch.allclose(block(x), block.norm(block.shortcut(x)))

    def test_coarse_grid_adds_no_parameter(self) -> None:
        coarse, fine = NonLocalEmbed(stride=16), NonLocalEmbed(stride=8)
        coarse.load_state_dict(fine.state_dict())
        assert coarse.eval()(images(224, 224, batch=1)).shape[2:] == (14, 14)


@pytest.mark.parametrize("kind", TOKEN_EMBEDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(kind: str, dtype: torch.dtype) -> None:
    embed = TOKEN_EMBEDS[kind](embed_dim=8).eval()
    x = images(40, 40)
    with torch.no_grad():
        want = embed(x)
        got = embed.to(dtype)(x.to(dtype)).float()
    assert relative_error(got, want) < 0.05


@pytest.mark.parametrize("kind", ["densenet", "resnet", "inception", "nonlocal"])
def test_refuses_other_strides(kind: str) -> None:
    with pytest.raises(ValueError, match="supports 4, 8 and 16"):
        TOKEN_EMBEDS[kind](stride=32)


def test_linear_refuses_no_stride() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LinearEmbed(stride=0)
