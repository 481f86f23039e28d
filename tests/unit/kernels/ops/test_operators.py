"""Every operator against its reference, in Triton's interpreter, and what the references are held to."""

import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from saccade.kernels.ops import add_up, attention, cluster, depthwise, gelu, norm, product
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import OPERATORS

KERNELS = [(home, name) for home in OPERATORS if home is not product for name in home.REFERENCES]
IDS = [name for _, name in KERNELS]


def drawn(*shapes):
    return [torch.randn(shape) for shape in shapes]


def attend_samples():
    for images, tokens, heads, width in [
        (2, 16, 2, 32),
        (3, 49, 3, 24),
        (1, 1, 2, 8),
        (2, 64, 1, 64),
        (2, 17, 4, 32),
        (1, 65, 2, 16),
        (1, 128, 1, 33),
    ]:
        grad, qkv = drawn((images, tokens, heads * width), (images, tokens, 3 * heads * width))
        yield "attend", (qkv, heads)
        for sums in (True, False):
            yield "attend_back", (grad, qkv, heads, sums)


def cluster_samples():
    shapes = [(2, 64, 16, 64), (2, 49, 9, 24), (1, 70, 16, 96), (2, 196, 49, 40), (1, 5, 3, 8), (1, 130, 64, 70)]
    for images, positions, slots, channels in shapes:
        query, held, of_slots = drawn(*3 * [(images, slots, channels)])
        features, grad = drawn(*2 * [(images, positions, channels)])
        scale = torch.tensor(3.0)
        yield "gather", (query, features, scale)
        yield "gather", (query, torch.where(features > 3, features, 0), scale)  # most of which have no direction
        made = cluster.gather_reference(query, features, scale)
        yield "gather_back", (of_slots, torch.randn_like(made[1]), query, features, scale, *made)
        yield "scatter", (made[1], held)
        for sums in (True, False):
            yield "scatter_back", (grad, made[1], held, sums)


def norm_samples():
    for shape in [(2, 9, 24), (1, 1, 64), (3, 50, 96), (2, 700, 33), (1, 5, 1024)]:
        for branches in (0, 1, 2):
            x, *more = (one + 1 for one in drawn(*3 * [shape]))
            branch, second = [*more[:branches], None, None][:2]
            weight, bias = drawn(shape[2:], shape[2:])
            yield "join", (x, branch, second, weight, bias, 1e-6)
            total, _, *rest = norm.join_reference(x, torch.zeros_like(x), None, weight, bias, 1e-6)
            yield "join_back", (more[0], more[1] if branches else None, x, total, *rest, weight)


def depthwise_samples():
    for shape, size in [((2, 7, 9, 24), 3), ((3, 10, 5, 16), 5), ((2, 8, 8, 32), 3), ((1, 3, 2, 8), 5)]:
        batch, height, width, channels = shape
        x, grad = drawn(*2 * [(batch, height * width, channels)])
        weight, bias = drawn((channels, 1, size, size), (channels,))
        cells = depthwise.cells_of(weight, x.dtype)
        yield "convolve", (x, cells, bias, height, width, False, size == 3, True, True, False)
        yield "convolve", (x, cells, bias, height, width, False, True, True, False, False)
        yield "convolve", (grad, cells, None, height, width, True, size == 3, False, True, True)
        yield "gradients", (grad, x, height, width, size)


def gelu_samples():
    for shape in [(2, 35, 64), (3, 1000)]:
        x, grad = drawn(shape, shape)
        yield "gelu", (3 * x,)
        yield "gelu_gradient", (grad, 3 * x)


def add_up_samples():
    for shapes in ([(1, 5)], [(64, 32), (200, 70)], [(65, 129), (700, 1)], [(3, 8), (600, 9)]):
        yield "sum_parts", (drawn(*shapes),)


def product_samples():
    for a, b in [((2, 5, 7), (2, 7, 3)), ((1, 196, 12), (1, 12, 64))]:
        yield "unpadded_product", tuple(drawn(a, b))


SAMPLES = {
    add_up: add_up_samples,
    attention: attend_samples,
    cluster: cluster_samples,
    depthwise: depthwise_samples,
    gelu: gelu_samples,
    norm: norm_samples,
    product: product_samples,
}


def samples(home, name):
    torch.manual_seed(0)
    found = [given for other, given in SAMPLES[home]() if other == name]
    assert found
    return found


def summed(outputs):
    """Return the outputs of an operator, with parts added up."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [out.sum(0) if out.ndim == 2 else out for out in outputs]


@pytest.mark.slow
@not_interpreted
def test_operators_equal_their_references_in_tritons_interpreter():
    assert f"{2 * len(KERNELS)} passed" in run_interpreted(__file__, "test_an_operator")


@interpreted
@pytest.mark.parametrize(("home", "name"), KERNELS, ids=IDS)
def test_an_operator_gives_what_its_reference_gives(home, name):
    for given in samples(home, name):
        got, want = getattr(home, name)(*given), home.REFERENCES[name](*given)
        got = got[want != 0] if name == "sum_parts" else got  # nobody reads what fills it up
        want = want[want != 0] if name == "sum_parts" else want
        torch.testing.assert_close(summed(got), summed(want), rtol=1e-3, atol=1e-3 if "back" in name else 1e-4)


@interpreted
@pytest.mark.parametrize(("home", "name"), KERNELS, ids=IDS)
def test_an_operator_keeps_its_schema_in_the_interpreter(home, name):
    operator = getattr(home, name)._opoverload
    for given in samples(home, name)[:2]:
        torch.library.opcheck(operator, given, test_utils="test_schema")


def test_a_product_that_the_compiler_takes_whole_is_an_operator_with_gradients():
    for a, b in samples(product, "unpadded_product"):
        given = a.double().requires_grad_(), b.double().requires_grad_()
        torch.library.opcheck(torch.ops.saccade.unpadded_product, given)
        assert torch.autograd.gradcheck(product.unpadded_product, given) if a.numel() < 100 else True


@pytest.mark.parametrize(("home", "name"), KERNELS, ids=IDS)
def test_a_reference_has_the_operators_signature(home, name):
    if home is not gelu:  # whose references are PyTorch's own
        declared = getattr(home, name)._opoverload._schema.arguments
        assert list(inspect.signature(home.REFERENCES[name]).parameters) == [one.name for one in declared]


@not_interpreted
@pytest.mark.parametrize(("home", "name"), KERNELS, ids=IDS)
def test_a_compiler_for_a_gpu_is_told_the_shapes(home, name):
    with FakeTensorMode(allow_non_fake_inputs=True):
        for given in samples(home, name):
            given = tree_map_only(torch.Tensor, lambda x: torch.empty(x.shape, device="cuda"), given)
            want = home.REFERENCES[name](*given)
            got = getattr(home, name)(*given)
            assert [one.shape[-1:] for one in tree_leaves(got)] == [one.shape[-1:] for one in tree_leaves(want)]


def double(given):
    return [one.double() if isinstance(one, torch.Tensor) else one for one in given]


def gradients(function, given, grads):
    given = [one.detach().requires_grad_() for one in given]
    outputs = function(*given)
    return torch.autograd.grad(outputs, given, grads)


def test_references_of_gradients_are_those_of_the_ways_forward():
    for grad, qkv, heads, sums in map(double, samples(attention, "attend_back")):
        (want,) = gradients(lambda qkv, heads=heads: attention.attend_reference(qkv, heads), [qkv], grad)
        got, parts = attention.attend_back_reference(grad, qkv, heads, sums)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(parts, want.sum(1) if sums else want[:0, 0])
    for grad, of_logits, query, features, scale, *_ in map(double, samples(cluster, "gather_back")):
        made = cluster.gather_reference(query, features, scale)
        want = gradients(lambda *of: cluster.gather_reference(*of)[:2], [query, features, scale], (grad, of_logits))
        *got, parts = cluster.gather_back_reference(grad, of_logits, query, features, scale, *made)
        torch.testing.assert_close((*got, parts.sum()), want)
    for grad, logits, held, sums in map(double, samples(cluster, "scatter_back")):
        want = gradients(cluster.scatter_reference, [logits, held], grad)
        *got, parts = cluster.scatter_back_reference(grad, logits, held, sums)
        torch.testing.assert_close(tuple(got), want)
        torch.testing.assert_close(parts, want[1].sum(1) if sums else want[1][:0, 0])
    for of_normed, more, of_total, total, _, _, weight in map(double, samples(norm, "join_back")):
        _, _, *rest = norm.join_reference(total, torch.zeros_like(total), None, weight, weight, 1e-6)
        bias = torch.zeros_like(weight)

        def joined(x, weight, bias):
            return x * 1, F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)

        given = of_normed if more is None else of_normed + more
        want = gradients(joined, [total, weight, bias], (of_total, given))
        got, parts = norm.join_back_reference(of_normed, more, of_total, total, *rest, weight)
        torch.testing.assert_close(got, want[0])
        sums = parts.sum(0).view(4, -1)
        torch.testing.assert_close(tuple(sums), (*want[1:], want[0].sum((0, 1)), of_total.sum((0, 1))))


@pytest.mark.parametrize("widths", [(5,), (8, 3), (17, 640)])
def test_sums_come_apart_again(monkeypatch, widths):
    monkeypatch.setattr(add_up, "sum_parts", add_up.sum_parts_reference)
    given = drawn(*((4, width) for width in widths))
    torch.testing.assert_close(add_up.add_up(*given), [one.sum(0) for one in given])
