import copy
import json

import pytest
import timm
import torch
import torch.nn.functional as F

from saccade.tasks import LabelMaps, TeacherLabels, make_label_maps, save_label_maps


def maps(count=3, classes=7, size=(4, 6)):
    generator = torch.Generator().manual_seed(0)
    return [(f"cat/{i}.png", torch.randn(classes, *size, generator=generator).softmax(0)) for i in range(count)]


def columns():
    """A map whose left half is class 0 and whose right half is class 1, 4 by 4."""
    dense = torch.zeros(3, 4, 4)
    dense[0, :, :2] = 1
    dense[1, :, 2:] = 1
    return dense


# Round trip


def test_all_classes_come_back_to_half_precision(tmp_path):
    saved = save_label_maps(tmp_path / "maps", maps(), top=7)
    assert saved.num_classes == 7
    assert len(saved) == 3
    assert list(saved) == [name for name, _ in maps()]
    for name, dense in maps():
        assert name in saved
        torch.testing.assert_close(saved[name], dense, rtol=1e-3, atol=1e-6)


def test_what_the_best_classes_leave_is_spread_evenly(tmp_path):
    saved = save_label_maps(tmp_path, maps(), top=2)
    for name, dense in maps():
        best, index = dense.topk(2, 0)
        wanted = ((1 - best.sum(0)) / 5).expand(7, 4, 6).scatter(0, index, best)
        torch.testing.assert_close(saved[name], wanted, rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(saved[name].sum(0), torch.ones(4, 6))


def test_logits_leave_the_other_classes_at_zero(tmp_path):
    saved = save_label_maps(
        tmp_path, [("a", torch.tensor([3.0, -2.0, 1.0, -4.0])[:, None, None])], top=2, values="logits"
    )
    assert saved["a"].flatten().tolist() == [3, 0, 1, 0]
    labels = saved.read(["a"], (1, 1))
    torch.testing.assert_close(labels.whole[0], torch.tensor([3.0, 0.0, 1.0, 0.0]).softmax(0))
    torch.testing.assert_close(labels.dense[0, :, 0, 0], labels.whole[0])


def test_shards_are_split_by_number_and_by_size(tmp_path):
    many = [*maps(5), *((f"wide/{name}", dense) for name, dense in maps(2, size=(3, 9)))]
    saved = save_label_maps(tmp_path, many, top=7, shard_size=2)
    assert len(saved.shards) == 4
    for name, dense in many:
        torch.testing.assert_close(saved[name], dense, rtol=1e-3, atol=1e-6)
    names = [many[i][0] for i in (5, 0, 6, 3)]  # of two sizes, in no order
    crops = torch.tensor([[0.1, 0.2, 0.6, 0.5], [0.0, 0.5, 0.7, 0.5], [0.2, 0.0, 0.8, 1.0], [0.3, 0.3, 0.3, 0.3]])
    together = saved.read(names, (2, 3), crops=crops)
    for i, name in enumerate(names):
        alone = saved.read([name], (2, 3), crops=crops[i : i + 1])
        torch.testing.assert_close(together.dense[i], alone.dense[0])
        torch.testing.assert_close(together.whole[i], alone.whole[0])


def test_more_classes_than_sixteen_bits_count_are_kept(tmp_path):
    dense = torch.zeros(2**16 + 2, 1, 1)
    dense[-1] = 1
    assert int(save_label_maps(tmp_path, [("a", dense)])["a"].argmax()) == 2**16 + 1


def test_copies_read_the_same(tmp_path):
    saved = save_label_maps(tmp_path, maps())
    name = maps()[1][0]
    for other in (copy.deepcopy(saved), LabelMaps(str(tmp_path))):
        assert torch.equal(other[name], saved[name])


# Crops


def test_whole_image_is_averaged_onto_the_grid(tmp_path):
    saved = save_label_maps(tmp_path, maps(), top=7)
    names = [name for name, _ in maps()]
    labels = saved.read(names, (2, 3))
    dense = torch.stack([saved[name] for name in names])
    torch.testing.assert_close(labels.dense, F.avg_pool2d(dense, 2))
    torch.testing.assert_close(labels.whole, dense.mean((2, 3)))


def test_crop_labels_are_those_of_what_was_cut_out(tmp_path):
    saved = save_label_maps(tmp_path, [("a", columns())])
    crops = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], [0.0, 0.25, 1.0, 0.5]])
    labels = saved.read(["a"] * 3, (2, 2), crops=crops)
    left, right = torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0])
    torch.testing.assert_close(labels.dense[0], left[:, None, None].expand(3, 2, 2))
    torch.testing.assert_close(labels.dense[1], right[:, None, None].expand(3, 2, 2))
    torch.testing.assert_close(labels.dense[2, :, 0], torch.stack([left, right], 1))  # one cell of each half
    torch.testing.assert_close(labels.whole[2], (left + right) / 2)


def test_crop_that_cuts_through_cells_interpolates_between_their_centres(tmp_path):
    ramp = torch.arange(4.0).expand(1, 4, 4) / 4  # cell centres at (i + 0.5) / 4
    saved = save_label_maps(tmp_path, [("a", torch.cat([ramp, 1 - ramp]))])
    labels = saved.read(["a"], (1, 1), crops=torch.tensor([[0.25, 0.25, 0.25, 0.375]]))
    # Two samples along 0.25 ... 0.625, in cells at 1.375 and 2.125, half a cell before which lie the values' places.
    torch.testing.assert_close(labels.whole[0, 0], torch.tensor((0.875 + 1.625) / 2 / 4))


def test_flipped_images_have_mirrored_labels(tmp_path):
    saved = save_label_maps(tmp_path, maps(2), top=7)
    names = [name for name, _ in maps(2)]
    crops = torch.tensor([[0.1, 0.2, 0.6, 0.5], [0.0, 0.5, 0.7, 0.5]])
    straight = saved.read(names, (2, 3), crops=crops)
    mixed = saved.read(names, (2, 3), crops=crops, flips=torch.tensor([True, False]))
    torch.testing.assert_close(mixed.dense[0], straight.dense[0].flip(2))
    assert torch.equal(mixed.dense[1], straight.dense[1])
    assert torch.equal(mixed.whole, straight.whole)
    torch.testing.assert_close(mixed.dense.sum(1), torch.ones(2, 2, 3))


def test_crop_of_a_flipped_image_is_that_of_the_flipped_map(tmp_path):
    dense = maps(1)[0][1]
    saved = save_label_maps(tmp_path, [("a", dense), ("mirrored", dense.flip(2))], top=7)
    crop, mirrored = torch.tensor([[0.1, 0.2, 0.6, 0.5]]), torch.tensor([[0.1, 0.3, 0.6, 0.5]])
    one = saved.read(["a"], (3, 2), crops=crop, flips=torch.tensor([1]))
    two = saved.read(["mirrored"], (3, 2), crops=mirrored)
    torch.testing.assert_close(one.dense, two.dense)


# From a teacher


@pytest.mark.parametrize("values", ["probabilities", "logits"])
def test_maps_made_by_a_teacher_are_its_labels_on_the_fly(tmp_path, values):
    teacher = TeacherLabels(timm.create_model("resnet10t", num_classes=5), values=values)
    images = torch.randn(3, 3, 64, 96)
    named = [(str(i), image) for i, image in enumerate(images)] + [("tall", torch.randn(3, 96, 64))]
    saved = make_label_maps(tmp_path, teacher, named, batch_size=2, top=5)
    read, made = saved.read(["0", "1", "2"], (4, 6)), teacher(images, (4, 6))
    torch.testing.assert_close(read.dense, made.dense, rtol=2e-3, atol=2e-3)
    assert saved["tall"].shape == (5, 3, 2)
    assert saved.values == values


# Errors


def test_a_missing_image_is_named(tmp_path):
    saved = save_label_maps(tmp_path, maps())
    with pytest.raises(ValueError, match=r"no label map of 'dog\.png'; it has those of 3 images \('cat/0\.png'"):
        saved.read(["cat/0.png", "dog.png"], (2, 2))


def test_a_file_cut_short_is_refused(tmp_path):
    saved = save_label_maps(tmp_path, maps())
    shard = tmp_path / saved.shards[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(OSError, match=r"labels-00000\.safetensors cannot be read .* truncated or damaged"):
        LabelMaps(tmp_path)
    shard.unlink()
    with pytest.raises(OSError, match=r"labels-00000\.safetensors cannot be read"):
        LabelMaps(tmp_path)


def test_an_unfinished_folder_is_refused(tmp_path):
    def broken():
        yield from maps()
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        save_label_maps(tmp_path, broken(), shard_size=1)
    with pytest.raises(FileNotFoundError, match=r"has no labels\.json; .* written completely"):
        LabelMaps(tmp_path)
    assert len(save_label_maps(tmp_path, maps())) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m | {"format": 9}, "is not of format 1"),
        (lambda m: m | {"images": 4}, "holds 3 images, but its labels.json counts 4"),
        (lambda m: m | {"num_classes": 2}, "there are 2 classes; make the maps again"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path, change, message):
    save_label_maps(tmp_path, maps())
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(OSError, match=message):
        LabelMaps(tmp_path)["cat/0.png"]


def test_a_damaged_manifest_is_refused(tmp_path):
    save_label_maps(tmp_path, maps())
    (tmp_path / "labels.json").write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        LabelMaps(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no images were given"),
        ([*maps(1), *maps(1)], "two images are named 'cat/0.png'"),
        ([*maps(1), ("b", torch.rand(5, 2, 2))], r"'b' has a map of shape \(5, 2, 2\)"),
        ([("b", torch.rand(5, 2))], r"maps must be classes, H, W"),
        ([("b", torch.full((5, 2, 2), torch.nan))], "the map of 'b' is not finite"),
    ],
)
def test_maps_that_cannot_be_saved_are_refused(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        save_label_maps(tmp_path, given)


def test_maps_are_never_overwritten(tmp_path):
    save_label_maps(tmp_path, maps())
    with pytest.raises(FileExistsError, match="already holds label maps"):
        save_label_maps(tmp_path, maps())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crops": torch.zeros(1, 5)}, r"crops of shape \(1, 5\)"),
        ({"crops": torch.tensor([[0.5, 0.0, 0.6, 1.0]])}, "extend beyond the image"),
        ({"crops": torch.tensor([[0.0, 0.0, 112.0, 96.0]])}, "as fractions of it"),
        ({"crops": torch.tensor([[0.0, 0.0, 0.0, 1.0]])}, "extend beyond the image"),
        ({"flips": torch.tensor([True, False])}, r"flips of shape \(2,\)"),
    ],
)
def test_crops_outside_the_image_are_refused(tmp_path, options, message):
    saved = save_label_maps(tmp_path, maps())
    with pytest.raises(ValueError, match=message):
        saved.read(["cat/0.png"], (2, 2), **options)
