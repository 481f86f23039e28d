import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from saccade.layers.dct import DCTAttention, dct_basis, pack_grouped, plain_attention
from saccade.layers.window import tile, untile
from support.golden import dct_kernel, part, part_state_dict, relative_error, tensor


class Direct(nn.Module):
    """The paper's form: DCT as a depthwise convolution, grouped 1x1 convolutions, attention, IDCT, pixel shuffle."""

    def __init__(self, dim: int, *, num_heads: int, block_size: int, groups: int = 8) -> None:
        super().__init__()
        kernel = torch.from_numpy(dct_kernel(block_size)).float()  # r * r, k, k
        kept = len(kernel)
        self.side, self.dim, self.groups, self.num_heads = block_size, dim, groups, num_heads
        self.register_buffer("dct", kernel[:, None].repeat(dim, 1, 1, 1))
        self.register_buffer("idct", kernel.flatten(1).T.repeat(dim, 1)[..., None, None])
        self.dw = nn.Conv2d(kept * dim, dim, 1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.up = nn.Conv2d(dim, kept * dim, 1, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        H, W = x.shape[2:]
        x = F.pad(x, (0, -W % self.side, 0, -H % self.side), mode="replicate")
        x = F.conv2d(x, self.dct, stride=self.side, groups=self.dim)
        x = self.bn1(self.dw(x))
        grid = x.shape[2:]
        q, k, v = self.to_qkv(x.flatten(2).mT).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        x = self.to_out((weights @ v).transpose(1, 2).flatten(2)).mT.unflatten(2, grid)
        x = F.conv2d(self.up(x), self.idct, groups=self.dim)
        return F.pixel_shuffle(x, self.side)[:, :, :H, :W].permute(0, 2, 3, 1)


def twin(direct: Direct) -> DCTAttention:
    """The layer with the weights of the direct form."""
    fast = DCTAttention(direct.dim, num_heads=direct.num_heads, block_size=direct.side, groups=direct.groups).to(
        direct.dw.weight.dtype
    )
    kept = fast.basis.shape[0]
    state = {
        "perceive.weight": pack_grouped(direct.dw.weight, groups=direct.groups, frequencies_in=kept),
        "restore.weight": pack_grouped(direct.up.weight, groups=direct.groups, frequencies_out=kept),
        "attn.qkv.weight": direct.to_qkv.weight,
        "attn.proj.weight": direct.to_out.weight,
        "attn.proj.bias": direct.to_out.bias,
        **{f"norm.{key}": value for key, value in direct.bn1.state_dict().items()},
    }
    fast.load_state_dict(state)
    return fast


@pytest.mark.parametrize("side", [8, 4, 7, 5])
def test_basis_is_the_published_one_to_the_bit(side):
    _, arrays = part("nommer_parts", f"dct.k{side}")
    assert torch.equal(dct_basis(side), arrays["kernel"].flatten(1))


@pytest.mark.parametrize("side", [8, 4, 7, 5])
def test_transform_and_inverse_are_the_published_ones(side):
    record, arrays = part("nommer_parts", f"dct.k{side}")
    x = tensor(record["input_key"], record["input_shape"]).double().permute(0, 2, 3, 1)
    basis = dct_basis(side).double()
    coefficients = basis @ tile(x, side).flatten(3, 4)  # B, rows, columns, frequencies, C
    assert relative_error(coefficients.permute(0, 4, 3, 1, 2).flatten(1, 2), arrays["coef"]) < 1e-12
    back = untile((basis.mT @ coefficients).unflatten(3, (side, side)))
    assert relative_error(back.permute(0, 3, 1, 2), arrays["recon"]) < 1e-12


@pytest.mark.parametrize("side", [1, 2, 4, 7, 8])
def test_basis_is_orthonormal(side):
    basis = dct_basis(side).double()
    assert basis.shape == (((side + 1) // 2) ** 2, side**2)
    assert torch.allclose(basis @ basis.mT, torch.eye(len(basis), dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize(("side", "key"), [(4, "nommer_parts/dctattn/x"), (8, "nommer_parts/dctattn8/x")])
def test_published_attention_is_reproduced(side, key):
    record, arrays = part("nommer_parts", f"dct_attention_k{side}")
    state = part_state_dict(record)
    direct = Direct(8, num_heads=2, block_size=side).eval().double()
    rename = {
        "attn.to_qkv": "to_qkv",
        "attn.to_out.0": "to_out",
        "dct_conv_8x8.weight": "dct",
        "idct_conv.0.weight": "idct",
    }
    for old, new in rename.items():
        state = {k.replace(old, new) if k.startswith(old) else k: v for k, v in state.items()}
    direct.load_state_dict(state)
    x = tensor(key, record["input_shape"]).double().permute(0, 2, 3, 1)
    with torch.no_grad():
        for module in (direct, twin(direct).eval()):
            assert relative_error(module(x).permute(0, 3, 1, 2), arrays["out"]) < 1e-12


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("side", "size"), [(4, (8, 12)), (8, (16, 8)), (4, (9, 6)), (5, (7, 11)), (1, (3, 4)), (2, (5, 4))]
)
def test_equals_direct_form_forward_and_gradients(side, size, training):
    torch.manual_seed(0)
    direct = Direct(16, num_heads=2, block_size=side).double().train(training)
    fast = twin(direct).train(training)
    x = torch.randn(2, *size, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, *size, 16, dtype=torch.float64)
    got, want = fast(x), direct(x)
    assert relative_error(got.detach(), want.detach()) < 1e-12
    kept = fast.basis.shape[0]
    theirs = torch.autograd.grad((want * weight).sum(), [x, direct.dw.weight, direct.up.weight, direct.to_qkv.weight])
    ours = torch.autograd.grad(
        (got * weight).sum(), [x, fast.perceive.weight, fast.restore.weight, fast.attn.qkv.weight]
    )
    packed = [
        theirs[0],
        pack_grouped(theirs[1], groups=8, frequencies_in=kept),
        pack_grouped(theirs[2], groups=8, frequencies_out=kept),
        theirs[3],
    ]
    for a, b in zip(ours, packed, strict=True):
        assert relative_error(a, b) < 1e-10
    assert torch.allclose(fast.norm.running_var, direct.bn1.running_var)


def test_keeps_no_more_for_backward_than_the_direct_form():
    def saved(module: nn.Module, x: Tensor) -> int:
        storages = {}

        def keep(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            module(x)
        # The input is kept anyway, by the norm before and the other candidates.
        return sum(size for place, size in storages.items() if place != x.untyped_storage().data_ptr())

    for side in (4, 8):
        direct = Direct(32, num_heads=2, block_size=side)
        x = torch.randn(2, 32, 32, 32, requires_grad=True)
        fast, plain = saved(twin(direct), x), saved(direct, x)
        assert fast <= plain
        assert fast < x.untyped_storage().nbytes()


def test_constant_is_not_saved_and_survives_conversions():
    attention = DCTAttention(8, num_heads=2, block_size=8)
    assert "basis" not in attention.state_dict()
    assert torch.equal(attention.half().double().basis, dct_basis(8).double())
    with torch.device("meta"):
        empty = DCTAttention(8, num_heads=2, block_size=8)
    assert torch.equal(empty.to_empty(device="cpu").basis, dct_basis(8))


def test_every_block_reaches_every_other():
    attention = DCTAttention(8, num_heads=2, block_size=4).eval()
    x = torch.randn(1, 12, 12, 8, requires_grad=True)
    attention(x)[0, 0, 0].sum().backward()
    assert (tile(x.grad, 4).abs().sum(dim=(0, 3, 4, 5)) > 0).all()


def test_high_frequencies_are_not_seen():
    attention = DCTAttention(8, num_heads=2, block_size=8).double().eval()
    x = torch.randn(1, 16, 16, 8, dtype=torch.float64)
    checker = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * 2.0 - 1  # (+1, -1) in each direction
    blocks = tile(checker[None, :, :, None].double(), 8).flatten(3, 4)
    low = dct_basis(8).double().mT @ (dct_basis(8).double() @ blocks)
    high = untile((blocks - low).unflatten(3, (8, 8)))
    assert high.abs().max() > 0.1
    assert torch.allclose(attention(x + high), attention(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite(dtype):
    attention = DCTAttention(16, num_heads=2, block_size=8).to(dtype)
    x = (10 * torch.randn(2, 17, 20, 16, dtype=dtype)).requires_grad_()
    y = attention(x)
    y.float().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("side", [4, 8])
def test_one_exported_program_serves_every_size(side):
    attention = DCTAttention(8, num_heads=2, block_size=side).eval()
    sizes = {0: Dim("b", min=1, max=8), 1: Dim("h", min=9, max=512), 2: Dim("w", min=9, max=512)}
    program = torch.export.export(attention, (torch.randn(2, 21, 33, 8),), dynamic_shapes=(sizes,)).module()
    for shape in ((2, 21, 33, 8), (1, 16, 40, 8), (3, 17, 64, 8)):
        x = torch.randn(shape)
        assert torch.allclose(program(x), attention(x), atol=1e-5)


def test_one_head_has_no_output_layer():
    assert isinstance(plain_attention(8, 1).proj, nn.Identity)
    assert isinstance(plain_attention(8, 2).proj, nn.Linear)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 12}, "not a multiple of the 8 groups"),
        ({"num_heads": 3}, "does not divide dim=8"),
        ({"block_size": 0}, "must be 1 or more"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DCTAttention(**{"dim": 8, "num_heads": 2, "block_size": 4, **arguments})
