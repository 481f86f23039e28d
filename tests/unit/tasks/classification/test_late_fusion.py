"""Late fusion is trained as two classifiers whose losses are added, or, in the paper's form, as one of added scores."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

import saccade
from saccade.layers.second_order import SecondOrder

IMAGES, LABELS = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])


def sot(**head):
    torch.manual_seed(0)
    return timm.create_model("sot_7", num_classes=3, depth=1, img_size=64, **head)


def plugged(**head):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=64, embed_dim=24, depth=1, num_heads=2)
    saccade.attach(model, saccade.SecondOrderHead(num_classes=3, **head))
    return model


def head_of(model):
    return next(module for module in model.modules() if isinstance(module, SecondOrder))


def pair_of(model):
    return head_of(model).logits_pair(model.forward_features(IMAGES))


def gradients(model):
    model.train()
    with torch.no_grad():  # as after some training: fresh classifiers answer so evenly that both forms are near
        for layer in (head_of(model).class_fc, head_of(model).word_fc):
            layer.weight.mul_(10)
    torch.manual_seed(1)
    saccade.Classify(model)(IMAGES, LABELS)["loss"].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("build", [sot, plugged])
def test_losses_of_both_classifiers_are_added_in_training_and_logits_in_answers(build):
    model = build(fusion="late").train()
    first, second = pair_of(model)
    result = saccade.Classify(model).train()(IMAGES, LABELS)
    torch.testing.assert_close(result["loss"], F.cross_entropy(first, LABELS) + F.cross_entropy(second, LABELS))
    torch.testing.assert_close(result["output"], first + second)
    judged = saccade.Classify(model).eval()(IMAGES, LABELS)
    torch.testing.assert_close(judged["loss"], F.cross_entropy(sum(pair_of(model)), LABELS))


@pytest.mark.parametrize("build", [sot, plugged])
def test_scores_are_added_in_training_and_answers_in_the_papers_form(build):
    model = build(fusion="late", late="scores").train()
    scores = torch.stack([logits.softmax(-1) for logits in pair_of(model)]).mean(0)
    result = saccade.Classify(model).train()(IMAGES, LABELS)
    torch.testing.assert_close(result["loss"], F.nll_loss(scores.log(), LABELS))
    torch.testing.assert_close(result["output"].exp().sum(1), torch.ones(4))


@pytest.mark.parametrize("build", [sot, plugged])
def test_late_fusion_does_not_train_as_sum(build):
    late, summed = gradients(build(fusion="late")), gradients(build(fusion="sum"))
    assert late.shape == summed.shape
    assert (late - summed).norm() > 0.05 * summed.norm()


def test_smoothing_weights_parts_and_other_losses_go_with_it():
    model = plugged(fusion="late").train()
    weights = torch.tensor([0.5, 1.0, 3.0])
    task = saccade.RelativeLocalization(saccade.Classify(model, class_weights=weights), weight=0.0).train()
    whole = task(IMAGES, LABELS)
    first, second = pair_of(model)
    wanted = F.cross_entropy(first, LABELS, weights) + F.cross_entropy(second, LABELS, weights)
    torch.testing.assert_close(whole["loss"], wanted)
    parts = [{"image": IMAGES[part], "target": LABELS[part]} for part in (slice(0, 1), slice(1, 4))]
    mean = sum(task.weight_of(part) for part in parts) / 4
    losses = [len(part["target"]) / 4 * task.reweigh(task(part), part, mean)["loss"] for part in parts]
    assert math.isclose(sum(losses).item(), wanted.item(), rel_tol=1e-5)
