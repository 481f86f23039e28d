"""What the GPU kernels of compiled training return, by plain operators, with as many parts of sums."""

import torch
import torch.nn.functional as F

from saccade.layers import attention, attention_triton, cluster_triton, depthwise_triton, halves, norm_triton, parts
from saccade.layers.activation import quick_gradient
from saccade.layers.depthwise import DepthwiseConv, by_library, convolve
from saccade.layers.small_triton import VALUES, WIDE


def by_plain_operators(monkeypatch, *, listens=True):
    """Have all that calls the kernels get their results; return the names of those that are called if it listens."""
    called = []

    def listed(plain):
        return (lambda *given: called.append(plain.__name__) or plain(*given)) if listens else plain

    homes = {
        norm_triton: (join, join_back),
        depthwise_triton: (convolve_map, gradients),
        attention_triton: (attend, attend_back),
        cluster_triton: (gather, gather_back, scatter, scatter_back),
        parts: (add_up,),
        halves: (lay_out,),
    }
    for home, kernels in homes.items():
        for plain in kernels:
            monkeypatch.setattr(home, plain.__name__.removesuffix("_map"), listed(plain))
    monkeypatch.setattr(depthwise_triton, "gelu_gradient", quick_gradient)
    for home in (norm_triton, attention_triton, cluster_triton):
        monkeypatch.setattr(home, "serves", lambda *_: True)
    monkeypatch.setattr(DepthwiseConv, "joins", lambda *_: True)
    monkeypatch.setattr(attention, "own_way", lambda _: True)
    monkeypatch.setattr(halves, "compiles", lambda: True)
    return called


def shared_out(sums, count):
    """Return parts that add up to sums."""
    return sums * torch.arange(1.0, count + 1)[:, None] / (count * (count + 1) / 2)


def add_up(arrays):
    return torch.cat([F.pad(one.sum(0), (0, -one.shape[1] % WIDE)) for one in arrays])


def lay_out(weights, dtype):
    return torch.cat([F.pad(one.to(dtype).flatten(1).t().flatten(), (0, -one.numel() % VALUES)) for one in weights])


def join(x, branch, second, weight, bias, eps):
    total = x + sum(one for one in (branch, second) if one is not None)
    mean = total.mean(-1)
    inverse = (total.var(-1, correction=0) + eps).rsqrt()
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps), mean, inverse


def join_back(of_normed, more, of_total, total, middle, inverse, weight):
    of_normed = of_normed if more is None else of_normed + more
    value = (total - middle[..., None]) * inverse[..., None]
    given = of_normed * weight
    found = given - given.mean(-1, keepdim=True) - value * (given * value).mean(-1, keepdim=True)
    found = of_total + found * inverse[..., None]
    sums = torch.cat([of_normed * value, of_normed, found, of_total], -1).sum((0, 1))
    return found, shared_out(sums, norm_triton._shares(total)[1])


def convolve_map(x, cells, bias, height, width, turned, residual, gelu, keep, sums):
    size = round(len(cells) ** 0.5)
    weight = cells.t().reshape(-1, 1, size, size)
    map = x.unflatten(1, (height, width))
    total = convolve(map, weight.flip(2, 3) if turned else weight, bias).flatten(1, 2) + (x if residual else 0)
    count = depthwise_triton.dues(len(x), (height, width), weight, None, weight)[1].parts
    kept = total if keep else total[:0]
    return kept, F.gelu(total) if gelu else total[:0], shared_out(total.sum((0, 1)), count) if sums else total[:0]


def gradients(grad, x, height, width, size):
    of_map, map = (one.unflatten(1, (height, width)) for one in (grad, x))
    weight = x.new_zeros(x.shape[2], 1, size, size)
    sums = torch.cat([by_library(of_map, map, weight).flatten(), grad.sum((0, 1))])
    return shared_out(sums, depthwise_triton.dues(len(x), (height, width), weight, None, None)[0].parts)


def attend(qkv, heads):
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def attend_back(grad, qkv, heads, sums):
    (found,) = _gradients(lambda qkv: attend(qkv, heads), [qkv], grad)
    return found, found.sum(1) if sums else found[:0, 0]


def gather(query, features, scale):
    logits = scale * (features @ query.mT) / features.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return logits.softmax(1).mT @ features, logits, logits.logsumexp(1)


def gather_back(grad, of_logits, query, features, scale, slots, logits, sums):
    torch.testing.assert_close((slots, logits, sums), gather(query, features, scale))
    each = scale.expand(len(query), 1, 1)
    of_query, of_features, of_scale = _gradients(
        lambda *given: gather(*given)[:2], [query, features, each], (grad, of_logits)
    )
    return of_query, of_features, of_scale[:, 0]


def scatter(logits, slots):
    return logits.softmax(2) @ slots


def scatter_back(grad, logits, slots, sums):
    of_logits, of_slots = _gradients(scatter, [logits, slots], grad)
    return of_logits, of_slots, of_slots.sum(1) if sums else of_slots[:0, 0]


def _gradients(function, given, grad):
    given = [one.detach().requires_grad_() for one in given]
    with torch.enable_grad():
        return torch.autograd.grad(function(*given), given, grad)
