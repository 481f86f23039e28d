import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from saccade.tasks import Distillation, RelativeLocalization
from saccade.tasks.auxiliary.distill import soft_loss

TARGETS = torch.tensor([1, 3])


def vit(**kwargs):
    return timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5, **kwargs)


def deit(**kwargs):
    return timm.create_model("deit_tiny_distilled_patch16_224", depth=1, img_size=32, num_classes=5, **kwargs)


def resnet(num_classes=5):
    return timm.create_model("resnet10t", num_classes=num_classes)


class Fixed(nn.Module):
    """Answers with the same logits whatever it is shown, and keeps what it was shown."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.shown = None

    def forward(self, images):
        self.shown = images
        return self.logits[: len(images)]


def images(size=32):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))


STUDENT = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
TEACHER = torch.tensor([[0.0, 3.0, 0.0], [1.0, 0.0, 4.0]])


# The loss


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_loss_is_the_divergence_by_hand(temperature):
    p, q = ((logits / temperature).exp() for logits in (TEACHER, STUDENT))
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    wanted = temperature**2 * (p * (p / q).log()).sum() / 2
    torch.testing.assert_close(soft_loss(STUDENT, TEACHER, temperature=temperature), wanted)
    assert float(soft_loss(TEACHER, TEACHER, temperature=temperature)) == pytest.approx(0, abs=1e-6)


def test_gradient_keeps_its_size_at_any_temperature():
    sizes = []
    for temperature in (50.0, 100.0):
        logits = STUDENT.double().requires_grad_()
        soft_loss(logits, TEACHER.double(), temperature=temperature).backward()
        sizes.append(float(logits.grad.norm()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_loss_shares_labels_and_teacher_by_weight():
    task = Distillation(
        Fixed(STUDENT.clone()), Fixed(TEACHER.clone()), weight=0.3, temperature=2.0, label_smoothing=0.1
    )
    result = task(images(), torch.tensor([0, 2]))
    labels = F.cross_entropy(STUDENT, torch.tensor([0, 2]), label_smoothing=0.1)
    taught = soft_loss(STUDENT, TEACHER, temperature=2.0)
    torch.testing.assert_close(result["classification"], labels)
    torch.testing.assert_close(result["distillation"], taught)
    torch.testing.assert_close(result["loss"].detach(), 0.7 * labels + 0.3 * taught)
    assert torch.equal(result["output"], STUDENT)


def test_hard_distillation_learns_the_teachers_best_class():
    task = Distillation(Fixed(STUDENT.clone()), Fixed(TEACHER.clone()), hard=True, temperature=7.0)
    result = task(images(), torch.tensor([0, 2]))
    torch.testing.assert_close(result["distillation"], F.cross_entropy(STUDENT, torch.tensor([1, 2])))


def test_shares_of_classes_are_labels_too():
    task = Distillation(Fixed(STUDENT.clone()), Fixed(TEACHER.clone()))
    hard = torch.tensor([0, 2])
    one, two = (task(images(), targets)["loss"] for targets in (hard, F.one_hot(hard, 3).float()))
    torch.testing.assert_close(one, two)


def test_unlabelled_images_are_learned_from_the_teacher_alone():
    task = Distillation(Fixed(STUDENT.clone()), Fixed(TEACHER.clone()), weight=0.3)
    result = task(images())
    assert result.keys() == {"loss", "output", "distillation"}
    torch.testing.assert_close(result["loss"].detach(), 0.3 * result["distillation"])


def test_evaluation_leaves_the_teacher_alone():
    teacher = Fixed(TEACHER.clone())
    task = Distillation(Fixed(STUDENT.clone()), teacher).eval()
    assert task(images()).keys() == {"output"}
    result = task(images(), torch.tensor([0, 2]))
    assert result.keys() == {"loss", "output", "classification"}
    torch.testing.assert_close(result["loss"].detach(), F.cross_entropy(STUDENT, torch.tensor([0, 2])))
    assert teacher.shown is None
    assert "distillation" in task(images(), distill=True)


# Two heads


def test_class_head_learns_labels_and_distillation_head_the_teacher():
    model, teacher = deit(), resnet()
    task = Distillation(model, teacher, weight=0.25, temperature=2.0)
    result = task(images(), TARGETS)
    classes, distilled = model(images())
    torch.testing.assert_close(result["classification"], F.cross_entropy(classes, TARGETS).detach())
    torch.testing.assert_close(
        result["distillation"], soft_loss(distilled, teacher(images()), temperature=2.0).detach()
    )
    torch.testing.assert_close(result["output"], (classes + distilled) / 2)
    (head,) = torch.autograd.grad(result["loss"], model.head.weight, retain_graph=True)
    (wanted,) = torch.autograd.grad(0.75 * F.cross_entropy(classes, TARGETS), model.head.weight)
    torch.testing.assert_close(head, wanted)


def test_two_heads_answer_together_in_evaluation():
    model = deit()
    task = Distillation(model, resnet()).eval()
    wanted = model(images())
    assert isinstance(wanted, torch.Tensor)
    assert torch.equal(task(images())["output"], wanted)
    torch.testing.assert_close(task(images(), TARGETS)["loss"], F.cross_entropy(wanted, TARGETS))


# The teacher


def test_teacher_is_frozen_in_evaluation_mode_and_no_part_of_the_task():
    model, teacher = vit(), resnet()
    task = Distillation(model, teacher).train()
    assert not teacher.training
    before = {key: value.clone() for key, value in teacher.state_dict().items()}
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    task(images(), TARGETS)["loss"].backward()
    optimizer.step()
    assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert task.state_dict().keys() == {f"model.{key}" for key in model.state_dict()}
    assert len(list(task.parameters())) == len(list(model.parameters()))
    assert len(list(task.modules())) == 1 + len(list(model.modules()))


def test_teacher_moves_with_the_task():
    teacher = resnet()
    norm = ((0.5,) * 3, (0.5,) * 3)
    task = Distillation(vit(), teacher, images_norm=norm, classes=[4, 3, 2, 1, 0])
    loss = task(images(), TARGETS)["loss"]
    assert {p.dtype for p in task.double().teacher.model.parameters()} == {torch.float64}
    double = task(images().double(), TARGETS)["loss"]
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), loss, rtol=1e-4, atol=1e-4)
    task.to("meta")
    moved = [*teacher.parameters(), task.teacher.rescale, task.teacher.classes]
    assert {tensor.device.type for tensor in moved} == {"meta"}


def test_teacher_of_another_precision_gets_its_own():
    task = Distillation(vit(), resnet().bfloat16())
    assert task(images(), TARGETS)["loss"].dtype == torch.float32


def test_images_are_renormalised_and_resized_for_the_teacher():
    teacher = Fixed(TEACHER.clone())
    ours, theirs = (((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)), ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    task = Distillation(Fixed(STUDENT.clone()), teacher, images_norm=ours, teacher_norm=theirs, size=(24, 40))
    pixels = torch.rand(2, 3, 1, 1).expand(2, 3, 32, 32)
    columns = [torch.tensor(values)[:, None, None] for values in (*ours, *theirs)]
    task((pixels - columns[0]) / columns[1])
    wanted = (pixels - columns[2]) / columns[3]
    torch.testing.assert_close(teacher.shown, wanted[:, :, :1, :1].expand(2, 3, 24, 40))


def test_teachers_norm_is_told_by_timm():
    teacher = resnet()
    task = Distillation(vit(), teacher, images_norm=((0.5,) * 3, (0.5,) * 3))
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(teacher.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    torch.testing.assert_close(task.teacher.prepare((pixels - 0.5) / 0.5), (pixels - mean) / std)
    with pytest.raises(ValueError, match=r"Fixed does not record the mean and std .* pass teacher_norm="):
        Distillation(Fixed(STUDENT), Fixed(TEACHER.clone()), images_norm=((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(ValueError, match="without images_norm="):
        Distillation(Fixed(STUDENT), Fixed(TEACHER.clone()), teacher_norm=((0.5,) * 3, (0.5,) * 3))


def test_classes_of_a_wider_teacher_are_picked():
    wide = torch.randn(2, 9)
    task = Distillation(Fixed(STUDENT.clone()), Fixed(wide.clone()), classes=[8, 0, 4])
    wanted = soft_loss(STUDENT, wide[:, [8, 0, 4]], temperature=1.0)
    torch.testing.assert_close(task(images())["distillation"], wanted)


@pytest.mark.parametrize(
    ("teacher", "options", "message"),
    [
        (lambda: resnet(7), {}, "the teacher has 7 classes, the model 5; .* classes="),
        (lambda: resnet(7), {"classes": [0, 1]}, "the teacher has 2 classes, the model 5"),
        (lambda: resnet(7), {"classes": [0, 1, 2, 3, 7]}, "class 7; the teacher's classes are 0 to 6"),
        (resnet, {"temperature": 0.0}, r"temperature=0\.0 was given"),
        (resnet, {"weight": 1.5}, r"weight=1\.5 was given"),
        (resnet, {"label_smoothing": 1.0}, r"label_smoothing=1\.0 was given"),
    ],
)
def test_what_cannot_be_learned_is_refused(teacher, options, message):
    with pytest.raises(ValueError, match=message):
        Distillation(vit(), teacher(), **options)


def test_a_silent_teachers_classes_are_checked_when_it_answers():
    with pytest.raises(ValueError, match="the teacher has 4 classes, the model 3"):
        Distillation(Fixed(STUDENT), Fixed(torch.randn(2, 4)))(images())


def test_a_model_does_not_teach_itself():
    model = vit()
    with pytest.raises(ValueError, match=r"shares parameters with the model.*deepcopy"):
        Distillation(model, model)
    assert Distillation(vit(), copy.deepcopy(model))(images())["loss"].isfinite()


def test_refused_self_teaching_leaves_the_model_trainable():
    model = vit().train()
    with pytest.raises(ValueError, match="shares parameters"):
        Distillation(model, model)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_what_another_task_needs_is_refused():
    with pytest.raises(TypeError, match="was given pairs"):
        Distillation(vit(), resnet())(images(), TARGETS, pairs=TARGETS)


# A citizen of PyTorch


def test_copy_has_its_own_teacher_and_gives_the_same():
    task = Distillation(vit(), resnet())
    twin = copy.deepcopy(task)
    assert torch.equal(task(images(), TARGETS)["loss"], twin(images(), TARGETS)["loss"])
    with torch.no_grad():
        twin.teacher.model.fc.bias.add_(torch.arange(5.0))
    assert not torch.equal(task(images(), TARGETS)["loss"], twin(images(), TARGETS)["loss"])


def test_autocast_keeps_the_loss_in_single_precision():
    task = Distillation(deit(), resnet(), temperature=2.0)
    single = task(images(), TARGETS)
    with torch.autocast("cpu", torch.bfloat16):
        result = task(images(), TARGETS)
    result["loss"].backward()
    assert result["loss"].dtype == result["distillation"].dtype == torch.float32
    torch.testing.assert_close(result["distillation"], single["distillation"], rtol=0.1, atol=0.05)


@pytest.mark.parametrize("build", [deit, pytest.param(vit, marks=pytest.mark.slow)])
def test_compiled_whole_it_gives_the_same(build):
    norm = ((0.5,) * 3, (0.5,) * 3)
    small = nn.Sequential(nn.Conv2d(3, 6, 16, 16), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    teacher = small if build is deit else resnet()
    task = Distillation(build(), teacher, size=48, images_norm=norm, teacher_norm=norm, classes=[4, 3, 2, 1, 0])
    compiled = torch.compile(task, fullgraph=True, backend="aot_eager")
    results = []
    for run in (compiled, task):
        task.zero_grad()
        result = run(images(), TARGETS)
        result["loss"].backward()
        results.append((result["loss"], [p.grad.clone() for p in task.parameters()]))
    torch.testing.assert_close(*results)


def test_localization_can_be_added():
    task = RelativeLocalization(Distillation(vit(), resnet()), weight=1.0)
    result = task(images(), TARGETS)
    wanted = 0.5 * result["classification"] + 0.5 * result["distillation"] + result["localization"]
    torch.testing.assert_close(result["loss"].detach(), wanted)
    assert not any(key.startswith("base.teacher") for key in task.state_dict())


def test_student_comes_nearer_to_its_teacher():
    torch.manual_seed(0)
    task = Distillation(vit(), resnet(), weight=1.0)
    with torch.no_grad():
        task.teacher.model.fc.weight.mul_(20)
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
    x, losses = torch.randn(8, 3, 32, 32), []
    for _ in range(20):
        loss = task(x)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
