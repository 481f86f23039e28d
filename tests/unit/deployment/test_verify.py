import numpy as np
import pytest
import torch

from saccade.data.spec import InputSpec
from saccade.deployment import verify
from saccade.deployment.bundle import ExportError
from saccade.deployment.judge import measure, paired_loss
from saccade.deployment.resampling import frame
from saccade.deployment.verify import BATCHES, VerificationSet, gather, race, sizes_to_try
from saccade.settings import TrainConfig, overlay, to_yaml
from support.images import class_folders

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGES = torch.arange(12 * 3 * 8 * 8).remainder(251).view(12, 3, 8, 8).to(torch.uint8)


COLOURS = InputSpec(("red", "green", "blue"), 3, 8, [0.5] * 3, [0.5] * 3)


def shape(classes=FASHION, channels=1):
    return InputSpec(classes, channels, 28, [0.5] * channels, [0.5] * channels)


def compare(eager, exported, images, sizes):
    return verify.compare(eager, exported, images, sizes, COLOURS)


def means(images):
    return images.float().mean((2, 3)).numpy() / 255


def test_equal_answers_have_no_difference_and_every_size_and_batch_is_asked():
    asked = set()

    def answer(images):
        asked.add((len(images), *images.shape[2:]))
        return means(frame(images, COLOURS))

    sizes = sizes_to_try(8)
    parity = compare(means, answer, IMAGES, sizes)
    assert parity.difference == 0
    assert parity.same == 1
    assert parity.within(1e-4)
    assert asked == {(batch, *size) for batch in BATCHES for size in sizes}
    assert len(set(sizes)) == 3


@pytest.mark.parametrize("batch", BATCHES)
def test_a_difference_at_one_number_of_images_is_found(batch):
    parity = compare(means, lambda x: means(x) + 0.01 * (len(x) == batch), IMAGES, ((8, 8),))
    assert parity.difference == pytest.approx(0.01, rel=1e-3)
    assert not parity.within(1e-4)


def test_a_difference_at_one_size_is_found():
    def answer(images):
        return means(frame(images, COLOURS)) + 0.01 * (images.shape[2] == 20)

    parity = compare(means, answer, IMAGES, ((8, 8), (20, 12)))
    assert not parity.within(1e-4)


def test_numbers_that_are_none_never_pass():
    parity = compare(means, lambda x: means(x) * np.nan, IMAGES, ((8, 8), (9, 9)))
    assert np.isnan(parity.difference)
    assert not parity.within(1e9)


def test_large_logits_may_differ_by_more():
    parity = compare(lambda x: means(x) * 1e3, lambda x: means(x) * 1e3 + 5e-3, IMAGES, ((8, 8),))
    assert parity.within(1e-4)
    assert not parity.within(1e-6)


def test_answers_of_another_shape_are_refused():
    with pytest.raises(ExportError, match="shape"):
        compare(means, lambda x: means(x)[:, :2], IMAGES, ((8, 8),))


def test_correct_counts_by_labels():
    labels = means(IMAGES).argmax(1)
    labels[0] = (labels[0] + 1) % 3
    right = measure(means, VerificationSet(IMAGES, {"target": torch.from_numpy(labels)}, "here"), COLOURS)
    assert right.each.astype(bool).tolist() == [False] + [True] * 11
    assert right.value == 11 / 12
    assert measure(means, VerificationSet(IMAGES, None, "here"), COLOURS) is None


def test_loss_is_paired_and_its_interval_covers_chance():
    eager = np.array([True] * 90 + [False] * 10)
    worse = eager.copy()
    worse[:8] = False
    loss = paired_loss(eager, worse)
    assert loss.value == pytest.approx(0.08)
    assert 0 < loss.low < 0.08 < loss.high < 0.16
    same = paired_loss(eager, eager)
    assert same.value == 0
    assert same.low < 0 < same.high
    assert paired_loss(worse, eager).value == pytest.approx(-0.08)


def test_interval_of_the_loss_holds_what_it_promises():
    random = np.random.default_rng(1)
    held = 0
    for _ in range(600):
        draw = random.random(300)
        eager = draw < 0.8
        exported = (draw < 0.76) | (draw > 0.99)  # truly 3 points worse
        loss = paired_loss(eager, exported)
        held += loss.low <= 0.03 <= loss.high
    assert 0.92 < held / 600 <= 1


def test_all_are_timed_on_the_same_images():
    first, second = race([means, means], IMAGES, rounds=2)
    assert first > 0
    assert second > 0


def test_a_run_is_judged_by_its_own_validation_images(tmp_path):
    class_folders(tmp_path / "set" / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "set" / "val", {"a": 3, "b": 4}, start=20)
    (tmp_path / "run").mkdir()
    config = overlay(TrainConfig(), {"data": {"path": str(tmp_path / "set")}}, source="test")
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(config))
    evidence = gather(tmp_path / "run", shape(("b", "a"), 3), limit=100)
    assert evidence.targets["target"].tolist() == [1] * 3 + [0] * 4  # in the order of the model's classes
    assert evidence.samples.shape == (7, 3, 28, 28)
    assert "of the run" in evidence.origin


def test_without_its_data_a_run_is_judged_by_the_embedded_images(tmp_path):
    evidence = gather(tmp_path / "nothing", shape(("b", "a"), 3), limit=20)
    assert evidence.targets is None
    assert evidence.samples.shape == (20, 3, 28, 28)
    assert evidence.origin == "bundled images"
    assert gather("vit", shape(), limit=20).targets is not None


def test_images_that_are_named_must_be_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        gather("vit", shape(), data=str(tmp_path / "nothing"))
