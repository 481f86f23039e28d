import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from saccade.plugins import HostError
from saccade.tasks import TeacherLabels
from saccade.tasks.auxiliary.teacher import resample

SIZE = (64, 96)
LINEAR = {  # the mean of positions is what the head sees
    "resnet10t": {},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 24, "img_size": SIZE},
    "mobilenetv3_small_050": {},
    "glnet_stl": {"depths": (1, 1, 1, 1)},
}
OTHERS = {
    "vit_tiny_patch16_224": {"depth": 1, "img_size": SIZE},
    "deit_tiny_distilled_patch16_224": {"depth": 1, "img_size": SIZE},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
}


def host(name, **kwargs):
    return timm.create_model(name, num_classes=5, **{**LINEAR, **OTHERS}[name], **kwargs)


def images():
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", [*LINEAR, *OTHERS])
def test_logits_of_the_image_are_the_teachers_own(name):
    model = host(name)
    whole, dense = TeacherLabels(model).logits(images())
    torch.testing.assert_close(whole, model(images()))
    stride = 16 if "patch16" in name else 32
    assert dense.shape == (2, 5, SIZE[0] // stride, SIZE[1] // stride)
    assert not whole.requires_grad


@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224", "glnet_stl"])
def test_positions_average_to_the_image_under_a_linear_head(name):
    whole, dense = TeacherLabels(host(name)).logits(images())
    torch.testing.assert_close(dense.mean((2, 3)), whole, rtol=1e-4, atol=1e-5)


def test_positions_of_a_vit_go_through_its_class_head_by_hand():
    model = host("vit_tiny_patch16_224")
    _, dense = TeacherLabels(model).logits(images())
    words = model.forward_features(images())[:, 1:]
    torch.testing.assert_close(dense, F.linear(words, model.head.weight, model.head.bias).mT.unflatten(2, (4, 6)))


def test_positions_of_a_convnext_go_through_its_heads_norm():
    model = host("convnext_atto")
    _, dense = TeacherLabels(model).logits(images())
    cell = model.forward_features(images())[:, :, 1:2, 2:3]
    torch.testing.assert_close(dense[:, :, 1, 2], model.head(cell), rtol=1e-4, atol=1e-5)


def test_both_heads_of_a_distilled_teacher_label_positions():
    model = host("deit_tiny_distilled_patch16_224")
    _, dense = TeacherLabels(model).logits(images())
    word = model.forward_features(images())[:, 2 + 7]
    torch.testing.assert_close(dense[:, :, 1, 1], (model.head(word) + model.head_dist(word)) / 2)


def test_a_teacher_trained_on_tokens_labels_them_with_that_head():
    model = host("glnet_stl", token_label=True)
    whole, dense = TeacherLabels(model).logits(images())
    torch.testing.assert_close(dense, model.classify_tokens(model.forward_features(images())))
    torch.testing.assert_close(whole, model(images()))


def test_labels_are_distributions_on_the_grid_asked_for():
    labels = TeacherLabels(host("resnet10t"))(images(), (4, 6))
    assert labels.dense.shape == (2, 5, 4, 6)
    torch.testing.assert_close(labels.whole.sum(1), torch.ones(2))
    torch.testing.assert_close(labels.dense.sum(1), torch.ones(2, 4, 6))


@pytest.mark.parametrize("values", ["probabilities", "logits"])
def test_values_say_what_is_averaged(values):
    teacher = TeacherLabels(host("vit_tiny_patch16_224"), values=values)
    _, dense = teacher.logits(images())
    wanted = F.avg_pool2d(dense, 2).softmax(1) if values == "logits" else F.avg_pool2d(dense.softmax(1), 2)
    torch.testing.assert_close(teacher(images(), (2, 3)).dense, wanted)


def test_resampling_averages_a_finer_map_and_interpolates_a_coarser():
    x = torch.randn(2, 3, 4, 6)
    assert resample(x, (4, 6)) is x
    torch.testing.assert_close(resample(x, (2, 3)), F.avg_pool2d(x, 2))
    wanted = F.interpolate(x, (8, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resample(x, (8, 12)), wanted)
    torch.testing.assert_close(resample(x, (1, 1))[:, :, 0, 0], x.mean((2, 3)))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 16, stride=16)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


def test_any_module_labels_places_by_a_function():
    model = Plain()
    with pytest.raises(HostError, match=r"has no forward_features and no forward_head.*pass dense="):
        TeacherLabels(model)
    teacher = TeacherLabels(model, dense=lambda module, x: (module(x), module.conv(x)))
    torch.testing.assert_close(teacher(images()).dense, model.conv(images()).softmax(1))
    picked = TeacherLabels(model, dense=teacher.dense, classes=[4, 0])
    torch.testing.assert_close(picked(images()).dense, model.conv(images())[:, [4, 0]].softmax(1))


def test_a_teacher_without_a_final_grid_is_refused():
    with pytest.raises(HostError, match="pit_ti_224 gives no grid of final features"):
        TeacherLabels(timm.create_model("pit_ti_224", depth=(1, 1, 1), img_size=64))


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="values='scores' was given"):
        TeacherLabels(Plain(), values="scores")


def test_labels_are_single_precision_under_autocast():
    teacher = TeacherLabels(host("resnet10t"))
    with torch.autocast("cpu", torch.bfloat16):
        labels = teacher(images(), (3, 3))
    assert {part.dtype for part in labels} == {torch.float32}
    torch.testing.assert_close(labels.dense, teacher(images(), (3, 3)).dense, rtol=0.1, atol=0.05)
