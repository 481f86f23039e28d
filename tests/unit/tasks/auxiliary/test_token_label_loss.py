"""The loss of token labelling: the published one, by hand, and its labels from a teacher or from disk."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import saccade.models.glnet  # noqa: F401
from saccade.layers.token_label import place_box, token_label_loss
from saccade.tasks import SoftLabels, TeacherLabels, TokenLabelling, save_label_maps
from support.token_labels import MIDDLE, TARGETS, host, images, soft, teacher

# The loss


@pytest.mark.parametrize("ground_truth", [False, True])
def test_loss_is_the_published_one_on_the_published_columns(ground_truth):
    task = TokenLabelling(host(), ground_truth=ground_truth, cls_weight=0.7, dense_weight=0.3)
    labels = SoftLabels(soft(2, 5), soft(2, 5, 4, 6))
    result = task(images(), TARGETS, labels=labels, place=MIDDLE)
    output, grid = task.run(images(), MIDDLE)
    on, off = 1 - 0.1 + 0.1 / 5, 0.1 / 5
    truth = torch.full((2, 5), off).scatter(1, TARGETS[:, None], on)
    columns = torch.cat([labels.whole[:, :, None], labels.dense.flatten(2)], 2) * on + off
    targets = torch.cat([truth[:, :, None], columns], 2)
    wanted = token_label_loss(output, targets, cls_weight=0.7, dense_weight=0.3, ground_truth=ground_truth)
    torch.testing.assert_close(result["loss"], wanted)
    torch.testing.assert_close(result["loss"].detach(), 0.7 * result["classification"] + 0.3 * result["tokens"])
    assert grid == (4, 6)
    assert output.box.area > 0


def test_loss_by_hand_on_a_host_that_says_what_it_is_told():
    class Told(nn.Module):
        num_classes = 2

        def forward(self, x):
            return x.mean((2, 3))[:, :2]

    model = Told()
    task = TokenLabelling(
        model, features=lambda m, x: (m(x), x[:, :2]), dim=2, layout="NCHW", grid=(1, 2), mix_token=False, smoothing=0.0
    )
    with torch.no_grad():
        task.aux_head.weight.copy_(torch.eye(2))
    x = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]], [[0.0, 0.0]]]])  # logits 2, 0; tokens 1, 0 and 3, 0
    labels = SoftLabels(torch.tensor([[0.25, 0.75]]), torch.tensor([[[[1.0, 0.5]], [[0.0, 0.5]]]]))
    result = task(x, torch.tensor([0]), labels=labels)

    def cross_entropy(p, logit):
        rest = torch.tensor(logit).exp().log1p()
        return p * (rest - logit) + (1 - p) * rest

    torch.testing.assert_close(result["classification"], cross_entropy(0.25, 2.0))
    torch.testing.assert_close(result["tokens"], (cross_entropy(1.0, 1.0) + cross_entropy(0.5, 3.0)) / 2)
    torch.testing.assert_close(result["loss"].detach(), result["classification"] + 0.5 * result["tokens"])


def test_class_label_is_mixed_as_the_images_are():
    task = TokenLabelling(host(), smoothing=0.0, dense_weight=0.0)
    labels = SoftLabels(soft(2, 5), soft(2, 5, 4, 6))
    result = task(images(), TARGETS, labels=labels, place=MIDDLE)
    share = float(place_box(MIDDLE, (4, 6)).area) / 24
    assert 0 < share < 1
    mixed = (1 - share) * labels.whole + share * labels.whole.flip(0)
    torch.testing.assert_close(result["classification"], F.cross_entropy(result["output"], mixed).detach())


def test_without_teacher_or_labels_every_token_has_its_images_target():
    task = TokenLabelling(host(), mix_token=False)
    result = task(images(), TARGETS)
    output, _ = task.run(images(), None)
    wanted = F.cross_entropy(output.logits, TARGETS, label_smoothing=0.1)
    dense = F.cross_entropy(output.tokens.flatten(0, 1), TARGETS.repeat_interleave(24), label_smoothing=0.1)
    torch.testing.assert_close(result["loss"], wanted + 0.5 * dense)


def test_shares_of_one_class_equal_its_index():
    task = TokenLabelling(host(), teacher(), ground_truth=True)
    one, two = (task(images(), targets, place=MIDDLE)["loss"] for targets in (TARGETS, F.one_hot(TARGETS, 5).float()))
    torch.testing.assert_close(one, two)


# Labels


def test_teachers_labels_are_put_on_the_students_grid():
    master = teacher()
    task = TokenLabelling(host(), master, smoothing=0.0)
    labels = TeacherLabels(master)(images(), (4, 6))
    assert labels.dense.shape == (2, 5, 4, 6)
    one = task(images(), TARGETS, place=MIDDLE)
    two = task(images(), TARGETS, place=MIDDLE, labels=labels)
    torch.testing.assert_close(one["loss"], two["loss"])
    three = task(images(), TARGETS, place=MIDDLE, labels=TeacherLabels(master)(images()))  # on its own grid
    torch.testing.assert_close(one["loss"], three["loss"])


def test_teacher_sees_images_before_they_are_mixed():
    master = teacher()
    task = TokenLabelling(host(), master)
    shown = []
    master.conv1[0].register_forward_pre_hook(lambda _, args: shown.append(args[0]))
    task(images(), TARGETS, place=MIDDLE)
    torch.testing.assert_close(shown[0], images())


def test_labels_are_read_from_disk_by_name_crop_and_flip(tmp_path):
    maps = save_label_maps(tmp_path, [(name, soft(1, 5, 6, 6, seed=i)[0]) for i, name in enumerate("abc")])
    task = TokenLabelling(host(), maps=maps)
    step = {
        "names": ["c", "a"],
        "crops": torch.tensor([[0.1, 0.2, 0.6, 0.5], [0.0, 0.5, 0.7, 0.5]]),
        "flips": torch.tensor([True, False]),
    }
    read = maps.read(step["names"], (4, 6), crops=step["crops"], flips=step["flips"])
    one = task(images(), TARGETS, place=MIDDLE, **step)
    two = task(images(), TARGETS, place=MIDDLE, labels=read)
    assert torch.equal(one["loss"], two["loss"])
    with pytest.raises(TypeError, match="give names="):
        task(images(), TARGETS)
    with pytest.raises(ValueError, match="no label map of 'd'"):
        task(images(), TARGETS, names=["a", "d"])
    assert torch.equal(copy.deepcopy(task)(images(), TARGETS, place=MIDDLE, **step)["loss"], one["loss"])
