import importlib
import itertools

import pytest
import torch
from torch import nn

from saccade.layers.relative_location import offsets
from saccade.plugins import HostError
from saccade.tasks import Classify, RelativeLocalization
from support.drloc_hosts import SIZE, TARGETS, every_host, host, images, listen, seeded
from support.hosts import Plain

for family in ("cvt", "glnet", "nommer", "sot", "t2t"):
    importlib.import_module(f"saccade.models.{family}")


# Hosts


@every_host
@pytest.mark.parametrize("grids", ["last", "stages", "blocks"])
def test_loss_trains_host_and_locators(name, grids):
    model = host(name)
    if name == "resnet50" and grids == "blocks":
        with pytest.raises(HostError, match="found none in ResNet"):
            RelativeLocalization(model, grids=grids)
        return
    task = RelativeLocalization(model, grids=grids, weight=1.0)
    x = images(model)
    heard = listen(task)
    result = task(x)  # without targets: localization alone
    result["loss"].backward()
    assert all(p.grad.abs().sum() > 0 for p in task.locators.parameters())
    stem = next(m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert stem.weight.grad.abs().sum() > 0
    assert len(heard) == len(task.locators) == {"last": 1}.get(grids, len(task.locators))
    for tokens, pairs, _ in heard:
        assert pairs.shape == (2, 64, 2)
        assert pairs.max() < tokens.shape[1]


@every_host
def test_answer_is_the_models_own_to_the_bit(name):
    model = host(name).eval()
    x = images(model)
    wanted = model(x)
    keys = list(model.state_dict())
    task = RelativeLocalization(model).eval()
    assert torch.equal(task(x)["output"], wanted)
    assert torch.equal(task(x, localize=True)["output"], wanted)
    assert task.model is model
    assert list(model.state_dict()) == keys
    assert torch.equal(model(x), wanted)


# Loss


def test_loss_is_the_tasks_plus_the_weighted_sum_over_grids():
    task = RelativeLocalization(host(), grids="blocks", weight=0.3, label_smoothing=0.1)
    x = images()
    pairs = task.draw(2, device="cpu", generator=seeded())["pairs"]
    assert pairs.shape == (2, 2, 64, 2)
    heard = listen(task)
    result = task(x, TARGETS, pairs=pairs)
    wanted = Classify(task.model, label_smoothing=0.1)(x, TARGETS)
    each = [
        (predicted - offsets(p % 24, (4, 6))).abs().mean() for (_, _, predicted), p in zip(heard, pairs, strict=True)
    ]
    torch.testing.assert_close(result["localization"], sum(each))
    torch.testing.assert_close(result["loss"], wanted["loss"] + 0.3 * sum(each))
    torch.testing.assert_close(result["classification"], wanted["loss"])
    assert not result["localization"].requires_grad
    task.set_epoch(10, 100)
    torch.testing.assert_close(task(x, TARGETS, pairs=pairs)["loss"], wanted["loss"] + 0.15 * sum(each))


VARIANTS = [
    {"loss": loss, "signed": signed, "unit": unit}
    for loss, signed in itertools.product(("l1", "cross_entropy", "gaussian", "square"), (False, True))
    for unit in (("cells", "sides", "span") if loss == "l1" else ("cells",))
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_every_variant_is_learnt(variant):
    place = torch.eye(24).unflatten(1, (4, 6)).expand(1, -1, -1, -1)

    class Places(nn.Module):
        def forward(self, x):
            return self.grid(place.expand(len(x), -1, -1, -1)).mean((2, 3))

    model = Places()
    model.grid = nn.Identity()
    task = RelativeLocalization(model, features="grid", dim=24, cells=(4, 6), pool=None, hidden_dim=64, **variant)
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-2)
    x, generator = torch.zeros(8, 3, *SIZE), seeded()
    losses = []
    for _ in range(80):
        result = task(x, generator=generator)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        losses.append(float(result["localization"]))
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


def test_loss_sees_the_order_of_cells():
    """Shuffling the cells of a map changes nothing for a classifier, but everything for localization."""
    model = Plain()
    task = RelativeLocalization(model, features="conv", dim=8)
    x = images()
    patches = x.unflatten(3, (6, 16)).unflatten(2, (4, 16)).permute(0, 1, 2, 4, 3, 5).flatten(2, 3)  # B, 3, 24, 16, 16
    shuffled = patches[:, :, torch.randperm(24)].unflatten(2, (4, 6)).permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    one, two = (task(batch, generator=seeded()) for batch in (x, shuffled))
    torch.testing.assert_close(one["output"], two["output"])
    assert not torch.isclose(one["localization"], two["localization"])


def test_class_counts_are_per_axis():
    for signed, counts in ((True, [7, 11]), (False, [4, 6])):
        task = RelativeLocalization(host(), loss="cross_entropy", signed=signed)
        assert [axis.out_features for axis in task.locators[0].axes] == counts
        assert task(images())["localization"].isfinite()
    task = RelativeLocalization(host(), loss="gaussian", cells=14)
    assert [axis.out_features for axis in task.locators[0].axes] == [27, 27]
    with pytest.raises(ValueError, match=r"4x6 cells, more than the location classes cover; pass cells=\(4, 6\)"):
        RelativeLocalization(host(), loss="gaussian", cells=5)(images())


@pytest.mark.parametrize("grids", ["last", "stages", "blocks"])
@pytest.mark.parametrize("name", ["glnet_stl", "pit_ti_224", "swin_tiny_patch4_window7_224"])
def test_classes_suffice_for_smaller_images_than_the_host_was_built_for(name, grids):
    model = host(name)
    assert RelativeLocalization(model, grids=grids, loss="cross_entropy")(images())["localization"].isfinite()


# Randomness


def test_same_generator_state_gives_the_same_draws():
    model = host().eval()
    task = RelativeLocalization(model).train()
    model.eval()
    x = images()
    state = torch.get_rng_state()
    one, two, other = (task(x, generator=seeded(n))["localization"] for n in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    drawn = task.draw(2, device="cpu", generator=seeded(1))
    assert torch.equal(task(x, **drawn)["localization"], one)
    assert torch.equal(torch.get_rng_state(), state)  # the default generator was left alone


def test_without_a_generator_the_devices_default_is_used():
    task = RelativeLocalization(host())
    x = images()
    torch.manual_seed(5)
    one = task(x)["localization"]
    assert not torch.equal(one, task(x)["localization"])
    torch.manual_seed(5)
    assert torch.equal(one, task(x)["localization"])


def test_evaluation_draws_nothing_and_adds_nothing():
    task = RelativeLocalization(host()).eval()
    x, generator = images(), seeded()
    before, default = generator.get_state(), torch.get_rng_state()
    result = task(x, TARGETS, generator=generator)
    assert result.keys() == {"loss", "output", "classification"}
    assert torch.equal(result["loss"].detach(), result["classification"])
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), default)
    assert "localization" in task(x, TARGETS, localize=True)


def test_pairs_are_drawn_on_the_device_of_the_features():
    with torch.device("meta"):
        task = RelativeLocalization(host("convnext_atto"))
        drawn = task.draw(2, device="meta")["pairs"]
        result = task(torch.empty(2, 3, *SIZE), torch.empty(2, dtype=torch.int64))
    assert drawn.device.type == result["loss"].device.type == "meta"
