"""Replacements go into models and out again without a trace, and run only where they may."""

import copy
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import saccade
from saccade.kernels import apply, removed, strip
from saccade.kernels.apply import plain_class
from saccade.kernels.fused import Fused
from saccade.kernels.table import KERNELS, Kernel
from saccade.plugins.attach import CHANGED
from support.toy_kernels import Block, CountedLinear, FusedBlock, row

X = torch.linspace(-1, 1, 12).view(3, 4)


def build(count=2):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def test_a_swapped_model_computes_the_same_and_keeps_its_names_and_undo_gives_all_back(rows):
    rows(row(FusedBlock))
    model = build()
    want, names = model(X), list(model.state_dict())
    before = [type(m) for m in model.modules()]
    handle = apply(model, "train")
    assert handle.names == ("toy",)
    assert isinstance(model[0], Block)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(X), want)
    assert FusedBlock.calls == 2
    handle.undo()
    assert handle.names == ()
    assert [type(m) for m in model.modules()] == before
    assert torch.equal(model(X), want)
    assert FusedBlock.calls == 2


def test_what_takes_says_no_to_runs_plain(rows):
    rows(row(FusedBlock))
    model = build()
    want = model(X.repeat(40, 1))
    apply(model, "infer")
    assert torch.equal(model(X.repeat(40, 1)), want)
    assert FusedBlock.calls == 0


def test_applied_twice_the_second_takes_nothing_and_undoes_nothing(rows):
    rows(row(FusedBlock))
    model = build()
    first, second = apply(model, "train"), apply(model, "infer")
    assert second.names == ()
    second.undo()
    assert type(model[0]) is FusedBlock
    first.undo()
    first.undo()
    assert type(model[0]) is Block


def test_a_module_that_stands_in_two_places_is_swapped_once(rows):
    rows(row(FusedBlock))
    block = Block()
    handle = apply(nn.Sequential(block, nn.Sequential(block)), "train")
    assert len(handle.swapped) == 1
    handle.undo()
    assert type(block) is Block


def test_off_a_device_and_a_mode_decide_and_workarounds_are_on_all_the_same(rows):
    rows(
        row(FusedBlock, devices=("cuda",)),
        row(CountedLinear, name="second", modes=("infer",)),
    )
    asked = apply(build(), "train", "toy,second")
    assert asked.names == ()
    assert asked.unused == {"toy": "it only supports cuda", "second": "it only supports infer"}
    assert apply(build(), "infer").names == ("second",)
    assert apply(build(), "infer", "-second").names == ()
    rows(row(FusedBlock, workaround=True), row(CountedLinear, name="second"))
    off = apply(build(), "train", "off")
    assert (off.names, off.workarounds) == ((), ("toy",))
    with pytest.raises(ValueError, match="there is no kernel 'toy'"):
        apply(build(), "train", "toy")
    with pytest.raises(ValueError, match="allowed are train and infer"):
        apply(build(), "eval")


def test_kernels_in_triton_are_refused_where_it_is_not_installed(rows, monkeypatch):
    rows(row(FusedBlock, triton=True))
    monkeypatch.setattr(sys.modules[apply.__module__], "INSTALLED", False)
    handle = apply(build(), "train", "toy")
    assert handle.names == ()
    assert handle.unused == {"toy": "Triton is not installed, or too old"}


def test_a_kernel_may_be_for_what_lies_within_some_modules_alone(rows):
    rows(row(CountedLinear, within=(Block,)))
    model = nn.Sequential(Block(), nn.Linear(4, 4))
    apply(model, "train")
    assert (type(model[0].linear), type(model[1])) == (CountedLinear, nn.Linear)


def test_what_a_replacement_refuses_is_told_and_stays(rows):
    rows(row(FusedBlock))
    model = build()
    model[0].linear = nn.Identity()
    handle = apply(model, "train", "toy")
    assert handle.refused == {"toy": {"its linear layer is another": 1}}
    assert [type(m) for m in model] == [Block, FusedBlock]
    assert handle.unused == {}
    model[1].linear = nn.Identity()
    strip(model)
    assert apply(model, "train", "toy").unused == {"toy": "its linear layer is another"}


def test_a_hook_inside_is_heard_whenever_it_comes_and_so_is_a_forward_of_an_instance(rows):
    rows(row(FusedBlock))
    heard = []
    early, late, own = build(1), build(1), build(1)
    early[0].linear.register_forward_hook(lambda *_: heard.append("early"))
    for model in (early, late, own):
        apply(model, "train")
    hook = late[0].norm.register_forward_pre_hook(lambda *_: heard.append("late"))
    own[0].linear.forward = lambda x: heard.append("own") or x
    for model in (early, late, own):
        model(X)
    assert heard == ["early", "late", "own"]
    assert FusedBlock.calls == 0
    hook.remove()
    late(X)
    assert FusedBlock.calls == 1
    late[0].register_forward_hook(lambda *_: heard.append("outside"))
    late(X)
    assert (heard[-1], FusedBlock.calls) == ("outside", 2)


def test_a_forward_that_somebody_kept_runs_plain_after_undo(rows):
    rows(row(FusedBlock))
    model = build(1)
    want = model(X)
    handle = apply(model, "train")
    kept = model[0].forward
    handle.undo()
    assert torch.equal(kept(X), want)


def test_a_replacement_that_no_longer_fits_goes_when_plug_ins_change(rows):
    rows(row(FusedBlock))
    model = build()
    handle = apply(model, "train")
    model[0].linear = nn.Identity()
    for notify in CHANGED:
        notify(model)
    assert [type(m) for m in model] == [Block, FusedBlock]
    handle.undo()
    assert [type(m) for m in model] == [Block, Block]


def test_copies_and_pickles_of_a_swapped_model_compute_the_same(rows):
    rows(row(FusedBlock))
    model = build()
    apply(model, "train")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(X), model(X))
        assert type(other[0]) is FusedBlock
        strip(other)
        assert type(other[0]) is Block
    assert type(model[0]) is FusedBlock


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_parametrized_modules_are_left_alone_and_undo_leaves_a_parametrization(rows):
    rows(row(CountedLinear))
    before, after = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    parametrize.register_parametrization(before[0], "weight", Doubled())
    assert apply(before, "train").names == ()
    plain = after(X)
    handle = apply(after, "train")
    parametrize.register_parametrization(after[0], "weight", Doubled())
    want = after(X)
    assert not torch.equal(plain, want)
    handle.undo()
    assert not isinstance(after[0], Fused)
    assert type(after[0]).__name__ == "ParametrizedLinear"
    assert torch.equal(after(X), want)
    parametrize.remove_parametrizations(after[0], "weight", leave_parametrized=False)
    assert type(after[0]) is nn.Linear
    assert torch.equal(after(X), plain)


def test_undo_takes_the_replacement_out_of_a_class_that_was_derived_from_it():
    class Sharded:
        def reshard(self):
            return "resharded"

    derived = type("FSDPFusedBlock", (Sharded, FusedBlock), {"__deepcopy__": None})
    found = plain_class(derived)
    assert found.__mro__[1:3] == (Sharded, Block)
    assert found.__name__ == "FSDPBlock"
    assert plain_class(derived) is found
    assert not issubclass(found, Fused)
    assert plain_class(Block) is Block


def test_removed_runs_plain_modules_for_a_while_even_when_it_fails(rows):
    rows(row(FusedBlock))
    model = build()
    want = model(X)
    apply(model, "infer")
    with removed(model):
        assert torch.equal(model(X), want)
    assert [type(m) for m in model] == [FusedBlock, FusedBlock]
    with pytest.raises(KeyError), removed(model):
        raise KeyError
    assert type(model[0]) is FusedBlock
    assert FusedBlock.calls == 0


def test_a_model_compiled_whole_runs_its_replacements_and_after_undo_its_plain_modules(rows):
    rows(row(FusedBlock))
    model = build()
    want = model(X)
    handle = apply(model, "train")
    traced = []

    def backend(graph, _):
        traced.append("layer_norm" in graph.code)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), want)
    handle.undo()
    torch.testing.assert_close(compiled(X), want)
    assert traced == [True, True]


def test_an_exported_graph_is_of_the_plain_modules(rows):
    rows(row(FusedBlock))
    model = build(1)
    apply(model, "infer")
    torch.export.export(model, (X,))
    assert FusedBlock.calls == 0


def test_gradients_of_ddp_and_of_an_accelerated_model_are_those_of_the_plain_one(rows):
    rows(row(FusedBlock))
    model = build()
    model(X).square().sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    handle = saccade.accelerate(model)
    model(X).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want)
    assert repr(handle) == "<kernels toy: 2 modules>"


@pytest.mark.parametrize("name", ["auto", "off", "two words", "-gelu"])
def test_a_kernel_has_a_name_that_the_switch_can_take(name):
    with pytest.raises(ValueError, match="use only letters"):
        row(FusedBlock, name=name)


def test_a_row_takes_replacements_alone_that_name_their_plain_class():
    class Other(FusedBlock):
        pass

    with pytest.raises(TypeError, match="name its plain class"):
        row(Other)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kernel_tells_what_it_gains_and_where_that_was_measured(kernel: Kernel):
    assert kernel.workaround or (kernel.gain and kernel.record)
    assert [one.name for one in KERNELS].count(kernel.name) == 1
