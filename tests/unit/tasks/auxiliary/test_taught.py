"""A teacher plug-in learns under everything that the task it stands for was given."""

import inspect
from dataclasses import fields

import pytest
import timm
import torch
from torch import nn

from saccade.building.build import build_model, build_task, parse_plugin
from saccade.data.feed import slice_batch
from saccade.data.spec import InputSpec
from saccade.plugins import PLUGINS
from saccade.runs.weights import save_model
from saccade.settings import AugmentConfig, ConfigError, LossConfig, ModelConfig
from saccade.tasks import Classify
from saccade.tasks.auxiliary.teacher import WithTeacher
from saccade.tasks.opening import choose_task

SETTINGS = {"smoothing": 0.3, "class_weights": [1.0, 2.0, 9.0]}  # of every field of loss, one that is not its default
LABELS = torch.tensor([0, 2, 1, 2])


def spec_for():
    return InputSpec(("a", "b", "c"), 3, 32, [0.5] * 3, [0.5] * 3)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The file of a run to learn from."""
    spec, config = spec_for(), ModelConfig(name="test_vit")
    file = tmp_path_factory.mktemp("teacher") / "model.safetensors"
    model = build_model(config, spec, seed=5)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())) * 0.05)
    save_model(file, model.state_dict(), config, spec)
    return file


TAUGHT = [name for name in PLUGINS if inspect.isclass(PLUGINS[name]) and issubclass(PLUGINS[name], WithTeacher)]
PLUGIN = ["distill:teacher={}", "distill:teacher={},hard=true,temperature=2.0", "token_label", "token_label:teacher={}"]


def build(plugins=(), head=None, **loss):
    spec, loss = spec_for(), LossConfig(**loss)
    model = ModelConfig(name="test_vit", plugins=[one for one in (head, *plugins) if one])
    counts = torch.bincount(LABELS).double()
    host = build_model(model, spec, seed=0)
    task = build_task(host, choose_task("classify"), model, loss, spec, seed=0, counts=counts, total=len(LABELS))
    follow = choose_task("classify").kind.codec(spec).mixed_targets(AugmentConfig(mixup=0.0, cutmix=0.0), loss)
    image = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return task.train(), {"image": image, "target": follow(LABELS, None), "truth": LABELS}


def loss_of(task, batch):
    torch.manual_seed(0)
    draws = task.draw(len(batch["image"]), device="cpu", generator=torch.Generator().manual_seed(3))
    return task(batch, **draws)["loss"]


def test_every_teacher_plugin_and_every_setting_of_the_loss_is_asked_about_here():
    assert {parse_plugin(text.format("x"))[0] for text in PLUGIN} == set(TAUGHT)
    assert SETTINGS.keys() == {one.name for one in fields(LossConfig)}


@pytest.mark.parametrize("setting", [*SETTINGS, "balanced"])
@pytest.mark.parametrize("plugin", PLUGIN)
def test_every_setting_of_the_loss_counts_with_a_teacher(plugin, setting, teacher):
    plugin = plugin.format(teacher)
    if setting == "smoothing" and plugin.startswith("token_label:teacher"):
        task, _ = build([plugin], smoothing=0.3)  # its labels are the teacher's, and none of the data's
        assert any("loss.smoothing = 0.3 has no effect" in note for note in task.spec.notes)
        assert not build([plugin])[0].spec.notes
        return
    given = {"class_weights": "balanced"} if setting == "balanced" else {setting: SETTINGS[setting]}
    assert abs(loss_of(*build([plugin], **given)) - loss_of(*build([plugin]))) > 1e-3


@pytest.mark.parametrize("plugin", PLUGIN)
def test_all_that_the_task_was_built_with_is_the_taught_tasks_too(plugin, teacher):
    plain, _ = build(class_weights=SETTINGS["class_weights"])
    taught, _ = build([plugin.format(teacher)], class_weights=SETTINGS["class_weights"])
    own = {**vars(plain), **plain._buffers}
    for name in [*inspect.signature(Classify).parameters, "spec", "primary", "options"]:
        if name not in ("model", "label_smoothing"):
            found = getattr(taught, name)
            same = torch.equal(found, own[name]) if isinstance(found, torch.Tensor) else found == getattr(plain, name)
            assert same, name


@pytest.mark.parametrize("head", [None, "second_order", "second_order:fusion=late"])
@pytest.mark.parametrize("loss", [{}, {"smoothing": 0.3}, {"class_weights": [1.0, 2.0, 9.0]}, SETTINGS])
def test_distillation_without_the_teachers_share_is_the_task_itself(head, loss, teacher):
    plain = loss_of(*build(head=head, **loss))
    taught = loss_of(*build([f"distill:teacher={teacher},weight=0.0"], head=head, **loss))
    torch.testing.assert_close(taught, plain)


@pytest.mark.parametrize("loss", [{"class_weights": [1.0, 2.0, 9.0]}, SETTINGS])
@pytest.mark.parametrize(
    "plugin",
    ["distill:teacher={}", "distill:teacher={},weight=0.2,hard=true", "token_label:teacher={},mix_token=false"],
)
@pytest.mark.parametrize("head", [None, "second_order:fusion=late"])
def test_parts_of_a_batch_learn_what_the_whole_would(plugin, loss, head, teacher):
    if head is not None and plugin.startswith("token_label"):
        with pytest.raises(ValueError, match="trains two classifiers"):
            build([plugin.format(teacher)], head=head, **loss)
        return
    task, batch = build([plugin.format(teacher)], head=head, **loss)
    whole = loss_of(task, batch)
    weight = task.weight_of(batch)
    mean = None if weight is None else weight / len(LABELS)
    parts = []
    for chunk in (slice(0, 2), slice(2, 4)):
        mine = slice_batch(batch, chunk)
        parts.append(task.reweigh(task(mine), mine, mean)["loss"])
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_two_heads_are_reweighed_by_the_one_that_learns_the_labels():
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_distilled_patch16_224", depth=1, img_size=32, num_classes=3)
    nn.init.normal_(model.head.weight)
    nn.init.normal_(model.head_dist.weight)
    other = timm.create_model("test_vit", img_size=32, num_classes=3)
    task = PLUGINS["distill"](model, other, weight=0.3, class_weights=torch.tensor([1.0, 2.0, 9.0])).train()
    batch = {"image": torch.randn(4, 3, 32, 32), "target": LABELS}
    mean = task.weight_of(batch) / len(LABELS)
    halves = [slice_batch(batch, chunk) for chunk in (slice(0, 2), slice(2, 4))]
    parts = [task.reweigh(task(mine), mine, mean)["loss"] for mine in halves]
    torch.testing.assert_close(torch.stack(parts).mean(), task(batch)["loss"])


def test_token_labels_that_are_certain_are_weighed_as_shares_are():
    task, batch = build(["token_label:mix_token=false,smoothing=0.0,dense_weight=0.0"], class_weights=[1.0, 2.0, 9.0])
    shares = torch.nn.functional.one_hot(LABELS, 3).float()
    wanted = Classify(task.model, class_weights=task.class_weights)({"image": batch["image"], "target": shares})["loss"]
    torch.testing.assert_close(loss_of(task, batch), wanted)
    torch.testing.assert_close(
        task.eval()(batch)["loss"], Classify(task.model, class_weights=task.class_weights)(batch)["loss"]
    )


def test_smoothing_of_the_labels_can_be_given_to_distillation(teacher):
    plain, smoothed = (f"distill:teacher={teacher}{more}" for more in ("", ",label_smoothing=0.3"))
    assert abs(loss_of(*build([plain])) - loss_of(*build([smoothed]))) > 1e-3


def test_two_teachers_are_refused(teacher):
    with pytest.raises(ConfigError, match=r"token_label, distill .*keep only one of them"):
        build(["token_label", f"distill:teacher={teacher}"])


def test_smoothing_that_token_labelling_would_not_use_is_refused():
    model = timm.create_model("test_vit", img_size=32, num_classes=3)
    with pytest.raises(TypeError, match=r"label_smoothing.*smoothing="):
        PLUGINS["token_label"](model, label_smoothing=0.1)
