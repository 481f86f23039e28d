import pytest
import torch

from saccade.layers.depthwise import DepthwiseConv


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("size", "shape"), [(3, (2, 5, 7, 4)), (5, (3, 4, 4, 6)), (1, (1, 3, 3, 2)), (5, (2, 1, 2, 3))]
)
def test_gradients_equal_those_of_the_plain_convolution(size, shape, bias):
    torch.manual_seed(0)
    layer = DepthwiseConv(shape[-1], size).double()
    layer.bias = layer.bias if bias else None
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)
    out = layer(x)
    got = torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])
    plain = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), layer.weight, layer.bias, padding=size // 2, groups=shape[-1]
    ).permute(0, 2, 3, 1)
    want = torch.autograd.grad((plain * weight).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(got, want)


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="odd"):
        DepthwiseConv(4, 2)
