import copy
import pickle

import pytest
import timm
import torch
from torch import nn

from saccade.plugins import ContextBroadcast, UniformHead, attach, attached
from saccade.plugins.tokens import HostError, find_host


def vit(**kwargs):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **kwargs}).eval()


class Double(nn.Module):
    """A module in the place of another."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, x):
        return self.gain * self.inner(x)


class Doubling:
    """A plug-in that replaces a module and can fail half-way."""

    def __init__(self, fail=False):
        self.fail = fail

    def install(self, host, handle):
        handle.replace(host.model, "head", Double(copy.deepcopy(host.model.head)))
        handle.replace(host.model, "note", "doubled")
        if self.fail:
            raise HostError("changed its mind")


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32)


def test_what_is_no_plugin_is_refused():
    with pytest.raises(TypeError, match="got the class ContextBroadcast"):
        attach(vit(), ContextBroadcast)
    with pytest.raises(TypeError, match=r"got Linear"):
        attach(vit(), nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got list"):
        attach([], ContextBroadcast())


def test_failed_installation_leaves_nothing_behind(x):
    model = vit()
    before, keys = model(x), list(model.state_dict())
    with pytest.raises(HostError, match="changed its mind"):
        attach(model, Doubling(fail=True))
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    assert not hasattr(model, "note")
    assert attached(model) == []


def test_detached_twice_is_an_error():
    handle = attach(vit(), ContextBroadcast())
    handle.detach()
    with pytest.raises(RuntimeError, match=r"not .* attached to the model"):
        handle.detach()


def test_handles_are_listed_in_order():
    model = vit()
    handles = [attach(model, ContextBroadcast()), attach(model, Doubling())]
    assert attached(model) == handles
    handles[0].detach()
    assert attached(model) == handles[1:]


def test_one_plugin_serves_several_models(x):
    plugin = ContextBroadcast(scale=True)
    first, second = vit(), vit()
    one, two = attach(first, plugin), attach(second, plugin)
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    one.detach()
    assert len(attached(second)) == 1


def test_replacement_under_another_one_cannot_be_detached_first(x):
    model = vit()
    before = model(x)
    one, two = attach(model, Doubling()), attach(model, Doubling())
    with pytest.raises(RuntimeError, match="detach Doubling first"):
        one.detach()
    torch.testing.assert_close(model(x), 4 * before)
    two.detach()
    one.detach()
    assert torch.equal(model(x), before)


def test_plain_value_set_by_two_plugins_is_restored_by_the_last(x):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert model.use_nested_tensor
    one, two = attach(model, ContextBroadcast()), attach(model, ContextBroadcast())
    one.detach()
    assert not model.use_nested_tensor
    two.detach()
    assert model.use_nested_tensor


def test_parameters_of_replacements_are_the_plugins():
    model = vit()
    handle = attach(model, Doubling())
    assert {id(p) for p in handle.parameters()} == {id(p) for p in model.head.parameters()}


def test_what_was_replaced_follows_the_model_where_it_went(x):
    model = vit()
    before = model.double()(x.double())
    model.float()
    handle = attach(model, Doubling())
    model.double().train()
    handle.detach()
    assert model.head.weight.dtype is torch.float64
    assert model.head.training
    torch.testing.assert_close(model.eval()(x.double()), before)


def test_frozen_module_stays_frozen():
    model = vit().train()
    model.head.eval()
    handle = attach(model, Doubling())
    assert not model.head.training
    handle.detach()
    assert not model.head.training
    assert model.training


def test_new_modules_take_the_precision_of_their_parent():
    model = vit().half()
    model.blocks[-1].double()
    handle = attach(model, ContextBroadcast(scale=True))
    assert [p.dtype for p in handle.parameters()] == [torch.float16, torch.float64]


def test_same_plugin_twice_gets_names_of_its_own(x):
    model = vit()
    one, two = attach(model, ContextBroadcast(scale=True)), attach(model, ContextBroadcast(scale=True))
    names = [name for name in model.state_dict() if "broadcast" in name]
    assert names == [f"blocks.{i}.broadcast{n}.scale" for i in (2, 3) for n in ("", "_2")]
    one.detach()
    assert [name for name in model.state_dict() if "broadcast" in name] == [
        f"blocks.{i}.broadcast_2.scale" for i in (2, 3)
    ]
    two.detach()


@pytest.mark.parametrize("broadcast_first", [True, False])
@pytest.mark.parametrize("broadcast_off_first", [True, False])
def test_hooks_on_a_replaced_module_go_on_working(x, broadcast_first, broadcast_off_first):
    model, plain = vit(), {}
    before = model(x)
    plugins = {"broadcast": ContextBroadcast(position="attention", layers="all"), "uniform": UniformHead("C")}
    for name, plugin in plugins.items():
        handle = attach(model, plugin)
        plain[name] = model(x)
        handle.detach()
    order = list(plugins) if broadcast_first else list(plugins)[::-1]
    handles = {name: attach(model, plugins[name]) for name in order}
    torch.testing.assert_close(model(x), plain["broadcast"])  # the added head has no effect at first
    handles.pop("broadcast" if broadcast_off_first else "uniform").detach()
    (left,) = handles
    torch.testing.assert_close(model(x), plain[left])
    handles[left].detach()
    assert torch.equal(model(x), before)


def test_a_module_is_not_added_to_a_container():
    model = nn.Sequential(vit())
    handle = attach(model, ContextBroadcast())
    with pytest.raises(HostError, match="Sequential would run"):
        handle.add(model, "extra", nn.Identity())


def test_whole_model_survives_pickling(x):
    model = vit()
    before = model(x)
    attach(model, ContextBroadcast())
    attach(model, Doubling())
    after = model(x)
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(x), after)
    for handle in attached(twin)[::-1]:
        handle.detach()
    assert torch.equal(twin(x), before)


def test_copy_of_a_copy_detaches_alone(x):
    model = vit()
    before = model(x)
    attach(model, ContextBroadcast())
    after = model(x)
    twin = copy.deepcopy(copy.deepcopy(model))
    attached(twin)[0].detach()
    assert torch.equal(twin(x), before)
    assert torch.equal(model(x), after)


def test_features_passed_by_keyword_are_heard():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

        def forward(self, x):
            return x + self.mlp(input=x)

    model = nn.Sequential(Block(), Block())
    x = torch.randn(2, 3, 4)
    before = model(x)
    handle = attach(model, ContextBroadcast(position="mlp_front", layers="all"))
    assert not torch.allclose(model(x), before)
    handle.detach()
    assert torch.equal(model(x), before)
    assert find_host(model).name == "Sequential"
