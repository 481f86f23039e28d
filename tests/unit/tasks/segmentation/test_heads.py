import functools
import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix
from timm.models.pit import PoolingVisionTransformer
from torch import nn

from saccade.building.build import build_model
from saccade.data.spec import InputSpec
from saccade.settings import ConfigError, ModelConfig
from saccade.tasks import Segment
from saccade.tasks.opening import choose_task
from saccade.tasks.segmentation.heads import AveragePool
from saccade.tasks.segmentation.losses import cross_entropy, dice, focal, hard_examples, mask_loss
from saccade.tasks.segmentation.metrics import SegmentationMetrics, borders
from saccade.training.recipes import configure

SMALL = {"upernet": "upernet:width=16,aux=8", "fpn": "fpn:width=16,inner=32"}
HOSTS = ["glnet_nano", "sot_7", "t2t_vit_7", "vit_tiny_patch16_224", "tf_efficientnet_lite0", "resnet18", "pvt_v2_b0"]
LARGE = ["cvt_13", "glnet_stl", "glnet_4g", "glnet_9g", "glnet_16g", "nommer_tiny", "nommer_small", "nommer_base",
         "sot_tiny", "sot_small", "sot_base", "t2t_vit_12", "t2t_vit_14", "t2t_vit_24", "swin_tiny_patch4_window7_224",
         "convnext_atto", "glnet_stl_paramslot", "glnet_4g_tl", "glnet_9g_tl", "vit_small_patch14_dinov2", "davit_tiny",
         "mobilenetv3_small_050", "efficientvit_b0"]  # fmt: skip
ONE_SIZE = ["maxvit_rmlp_pico_rw_256", "xcit_nano_12_p16_224", "hiera_tiny_224", "cait_xxs24_224", "twins_pcpvt_small",
            "efficientformer_l1"]  # fmt: skip


def make_spec(outputs=("a", "b", "c"), side=32, **extra):
    return InputSpec(tuple(outputs), 3, side, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, **extra})


def segmenter(name, head, side=65, classes=3):
    return build_model(ModelConfig(name=name, head=head), make_spec("abcdefgh"[:classes], side), seed=0)


def check_any_size(name, head):
    model = segmenter(name, SMALL[head]).train()
    answer = model(torch.randn(2, 3, 65, 47))
    logits = getattr(answer, "logits", answer)
    assert logits.shape == (2, 3, 65, 47)
    assert hasattr(answer, "aux") == (head == "upernet")
    logits.square().mean().backward()
    unused = [key for key, p in model.named_parameters() if p.grad is None and not key.startswith("auxiliary")]
    assert not [key for key in unused if key.startswith(("decoder", "classifier", "neck"))]
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 33, 70)).shape == (1, 3, 33, 70)


@pytest.mark.parametrize("head", ["upernet", "fpn"])
@pytest.mark.parametrize("name", HOSTS)
def test_host_takes_head_at_an_odd_size(name, head):
    check_any_size(name, head)


# Millions of parameters, 150 classes: Context Broadcasting's Table 6, GLMix's Table 5.
WEIGHTS = [
    ("vit_tiny_patch16_224", "segment_cb", 34.1),
    ("vit_small_patch16_224", "segment_cb", 53.5),
    ("vit_base_patch16_224", "segment_cb", 127.0),
    ("glnet_4g", "segment_glnet_fpn", 30.7),
    ("glnet_9g", "segment_glnet_fpn", 63.6),
    ("swin_tiny_patch4_window7_224", "segment_glnet_fpn", 31.9),
    ("glnet_4g", "segment_glnet_upernet", 56.8),
    ("glnet_9g", "segment_glnet_upernet", 91.7),
    ("swin_tiny_patch4_window7_224", "segment_swin", 59.9),
    ("swin_small_patch4_window7_224", "segment_glnet_fpn", 53.2),
    ("swin_small_patch4_window7_224", "segment_glnet_upernet", 81.3),
]


@pytest.mark.parametrize(("name", "recipe", "millions"), WEIGHTS)
def test_segmenters_of_the_recipes_weigh_what_the_papers_tables_say(name, recipe, millions):
    with torch.device("meta"):
        model = segmenter(name, configure(recipe, {"model.name": name}).model.head, side=512, classes=150)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["upernet", "fpn"])
@pytest.mark.parametrize("name", LARGE + ONE_SIZE)
def test_large_host_takes_head_at_an_odd_size(name, head):
    check_any_size(name, head)


def test_every_registered_backbone_is_tried():
    ours = {name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("saccade")}
    assert len(ours) >= 20
    assert ours <= {*HOSTS, *LARGE}


def test_host_of_one_size_is_given_images_of_that_size():
    model = segmenter("levit_128s", "upernet:width=8,aux=0").eval()
    assert model.side == 128
    with torch.no_grad():
        maps = model.maps(torch.randn(1, 3, 65, 47))
    assert [tuple(one.shape[-2:]) for one in maps] == [(8, 8), (4, 4), (2, 2), (1, 1)]


def test_host_whose_maps_do_not_fit_together_is_refused(monkeypatch):
    build = PoolingVisionTransformer.__init__

    @functools.wraps(build)
    def init(self, *args, **kwargs):
        build(self, *args, **kwargs)
        self.feature_info = [{**info, "reduction": 7 * 2**stage} for stage, info in enumerate(self.feature_info)]

    monkeypatch.setattr(PoolingVisionTransformer, "__init__", init)  # as timm told of it up to 1.0.30
    with pytest.raises(
        ConfigError, match=r"pit_ti_224 has no feature maps that a head can combine at 128 x 128 .* choose"
    ):
        segmenter("pit_ti_224", "upernet:width=8,aux=0")


@pytest.mark.parametrize("training", [True, False])
def test_narrow_fpn_takes_a_single_tiny_image(training):
    model = segmenter("resnet18", "fpn:width=8,inner=32", side=16).train(training)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # of one image with one cell it has nothing to learn
    assert model(torch.randn(1, 3, 7, 5)).shape == (1, 3, 7, 5)


@pytest.mark.parametrize(
    "head", ["unet:width=4", "unetplusplus:width=4", "manet:width=4", "pan:width=8", "segformer:width=8"]
)
def test_other_decoders_take_any_size(head):
    model = segmenter("resnet18", head).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 3, 37, 50)).shape == (2, 3, 37, 50)


def test_columnar_host_gets_a_pyramid_of_four_scales():
    model = segmenter("vit_tiny_patch16_224", SMALL["fpn"], side=64)
    sides = [one.shape[-1] for one in model.maps(torch.randn(1, 3, 64, 64))]
    assert sides == [16, 8, 4, 2]
    assert [entry["module"] for entry in model.feature_info] == [f"backbone.blocks.{n}" for n in (2, 5, 8, 11)]


def test_unknown_head_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown head 'upernt'.*upernet.*did you mean 'upernet'"):
        build_model(ModelConfig(name="resnet18", head="upernt"), make_spec(), seed=0)
    with pytest.raises(ConfigError, match="the task classify has no choice of heads"):
        build_model(
            ModelConfig(name="resnet18", head="fpn"), InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3), seed=0
        )


def test_pooling_by_matrices_is_adaptive_pooling():
    x = torch.randn(2, 3, 7, 5)
    for size in (1, 2, 3, 6):
        assert torch.allclose(AveragePool(size)(x), F.adaptive_avg_pool2d(x, size), atol=1e-6)


# Losses on cases by hand


def two_pixels(first, second):
    """Return logits of one image of two pixels whose shares of class 1 are given."""
    shares = torch.tensor([first, second], dtype=torch.float64)
    return torch.stack([torch.log(1 - shares), torch.log(shares)])[None, :, None, :]


def test_cross_entropy_leaves_ignored_pixels_out():
    logits = two_pixels(0.75, 0.5)
    assert cross_entropy(logits, torch.tensor([[[1, -1]]])).item() == pytest.approx(-math.log(0.75), abs=1e-6)
    both = cross_entropy(logits, torch.tensor([[[1, 0]]])).item()
    assert both == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2, abs=1e-6)
    assert cross_entropy(logits, torch.full((1, 1, 2), -1)).item() == 0


def test_class_weights_weigh_pixels():
    logits, weights = two_pixels(0.75, 0.5), torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = cross_entropy(logits, torch.tensor([[[1, 0]]]), weights).item()
    assert found == pytest.approx((-3 * math.log(0.75) - math.log(0.5)) / 4, abs=1e-6)


def test_focal_loss_counts_sure_pixels_less():
    found = focal(two_pixels(0.75, 0.5), torch.tensor([[[1, 0]]])).item()
    assert found == pytest.approx((-(0.25**2) * math.log(0.75) - 0.5**2 * math.log(0.5)) / 2, abs=1e-6)


def test_hard_examples_leave_easy_pixels_out():
    found = hard_examples(two_pixels(0.9, 0.5), torch.tensor([[[1, 0]]])).item()
    assert found == pytest.approx(-math.log(0.5), abs=1e-6)
    easy = hard_examples(two_pixels(0.9, 0.2), torch.tensor([[[1, 0]]])).item()
    assert easy == pytest.approx(-math.log(0.8), abs=1e-6)  # one sixteenth at least: the hardest of two


def test_dice_is_one_less_the_overlap():
    target = torch.tensor([[[1, 0]]])
    found = dice(two_pixels(0.75, 0.5), target).item()
    first = 1 - (2 * 0.5 + 1) / (0.25 + 0.5 + 1 + 1)
    second = 1 - (2 * 0.75 + 1) / (0.75 + 0.5 + 1 + 1)
    assert found == pytest.approx((first + second) / 2, abs=1e-6)
    assert mask_loss("ce+dice")(two_pixels(0.75, 0.5), target, None).item() == pytest.approx(
        found + cross_entropy(two_pixels(0.75, 0.5), target).item()
    )
    with pytest.raises(ConfigError, match="loss=cd was given; it must be one of ce, focal, ohem, dice"):
        choose_task("segment:loss=cd")


def test_parts_of_a_batch_give_the_loss_of_the_whole():
    task = Segment(nn.Conv2d(3, 3, 1))
    batch = {"image": torch.randn(4, 3, 6, 6), "mask": torch.randint(-1, 3, (4, 6, 6))}
    batch["mask"][3] = -1
    whole = task(batch)["loss"]
    mean = task.weight_of(batch) / 4
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(0, 2), slice(2, 4))]
    parts = [task.reweigh(task(half), half, mean)["loss"] for half in halves]
    assert torch.stack(parts).mean().item() == pytest.approx(whole.item(), rel=1e-5)


# Metrics


def test_mean_iou_equals_that_of_scikit_learns_confusion_matrix():
    draws = np.random.default_rng(0)
    truth, answer = draws.integers(-1, 4, (5, 20, 30)), draws.integers(0, 4, (5, 20, 30))
    metrics = SegmentationMetrics(make_spec("abcd"))
    for part in (slice(0, 2), slice(2, 5)):
        places = torch.arange(5)[part]
        answers = {"mask": torch.tensor(answer[part]), "loss": torch.zeros(len(places))}
        metrics.update(answers, {"mask": torch.tensor(truth[part]), "place": places})
    found = metrics.compute()
    counted = truth >= 0
    matrix = confusion_matrix(truth[counted], answer[counted], labels=range(4))
    right = np.diag(matrix)
    ious = right / (matrix.sum(0) + matrix.sum(1) - right)
    assert found["miou"] == pytest.approx(ious.mean(), abs=1e-12)
    assert found["macc"] == pytest.approx((right / matrix.sum(1)).mean(), abs=1e-12)
    assert found["aacc"] == pytest.approx(right.sum() / matrix.sum(), abs=1e-12)
    assert [found[f"iou_{place}"] for place in range(4)] == pytest.approx(ious.tolist(), abs=1e-12)
    assert (metrics.predictions()["confusion"].sum(0).numpy() == matrix).all()


def test_class_that_is_nowhere_counts_in_no_mean():
    metrics = SegmentationMetrics(make_spec("abc"))
    mask = torch.tensor([[[0, 0], [1, 1]]])
    metrics.update({"mask": mask, "loss": torch.zeros(1)}, {"mask": mask, "place": torch.arange(1)})
    assert metrics.compute()["miou"] == 1.0
    assert metrics.compute()["iou_2"] == 0.0


def test_boundary_iou_looks_at_borders_alone():
    truth = torch.zeros(1, 40, 40, dtype=torch.int64)
    truth[:, 10:30, 10:30] = 1
    both = borders(truth, truth, 2)[0]
    assert (both[0] == both[1]).all()
    assert both[1, 1] == 20 * 20 - 18 * 18  # 2% of the diagonal is one pixel
    holed = truth.clone()
    holed[:, 15:25, 15:25] = 0  # wrong far from where the truth ends
    first = borders(holed, truth, 2)[0, :, 1]
    assert first[0] == 20 * 20 - 18 * 18
    assert first[1] > first[0]
