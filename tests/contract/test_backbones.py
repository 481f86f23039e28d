"""timm's contract, over every registered backbone."""

import copy
import io
import warnings

import pytest
import timm
import torch
from timm.models import group_parameters
from timm.optim import param_groups_layer_decay

from support.backbones import COLUMNS, FAMILIES, NAMES, PYRAMIDS, shallow

ODD, WIDE, TINY = (97, 131), (64, 96), (20, 33)
SMALL = (32, 48)  # for what a CPU does slowly: half precision
every_family = pytest.mark.parametrize("name", FAMILIES)
# One variant of each family always, all with the slow tests.
each_family_or_slow = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAMILIES else [pytest.mark.slow]) for name in NAMES]
)
# Training as one graph and exporting take longest: one network always.
LONG = ("cvt_13",)
one_or_slow = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in LONG else [pytest.mark.slow]) for name in NAMES]
)


def images(size=WIDE, batch=2, channels=3):
    return torch.randn(batch, channels, *size)


def test_all_twenty_names_are_registered():
    assert set(NAMES) == {
        *("nommer_tiny", "nommer_small", "nommer_base"),
        "glnet_nano",
        *("glnet_stl", "glnet_stl_paramslot", "glnet_4g", "glnet_9g", "glnet_16g", "glnet_4g_tl", "glnet_9g_tl"),
        *("sot_7", "sot_tiny", "sot_small", "sot_base"),
        *("cvt_13", "t2t_vit_7", "t2t_vit_12", "t2t_vit_14", "t2t_vit_24"),
    }


@each_family_or_slow
def test_full_variant_classifies_an_odd_non_square_image(name):
    model = timm.create_model(name).eval()
    with torch.inference_mode():
        logits = model(images(ODD, batch=1))
    assert logits.shape == (1, 1000)
    assert logits.isfinite().all()
    assert logits.std() > 0


@each_family_or_slow
@pytest.mark.parametrize("size", [ODD, WIDE, TINY, (224, 224)], ids=str)
def test_any_size_gives_finite_logits(name, size):
    model = shallow(name, num_classes=7).eval()
    with torch.inference_mode():
        logits = model(images(size, batch=1))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()


@each_family_or_slow
def test_images_of_a_batch_do_not_see_each_other(name):
    model = shallow(name, num_classes=7).double().eval()
    x = images().double()
    with torch.inference_mode():
        torch.testing.assert_close(model(x), torch.cat([model(x[:1]), model(x[1:])]))


@each_family_or_slow
@pytest.mark.parametrize("channels", [1, 5])
def test_in_chans(name, channels):
    model = shallow(name, in_chans=channels, num_classes=3).eval()
    with torch.inference_mode():
        assert model(images(channels=channels)).shape == (2, 3)


@each_family_or_slow
def test_forward_is_features_then_head(name):
    model = shallow(name, num_classes=7).eval()
    x = images()
    with torch.inference_mode():
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), model(x))
        assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)
        assert features.shape[0] == 2
        assert model.num_features in features.shape


@each_family_or_slow
def test_reset_classifier(name):
    model = shallow(name, num_classes=7).eval()
    assert model.num_classes == 7
    model.reset_classifier(4)
    assert model.num_classes == 4
    with torch.inference_mode():
        assert model(images()).shape == (2, 4)
        assert any(p.shape[0] == 4 for p in model.get_classifier().parameters())
        model.reset_classifier(0)
        assert model.num_classes == 0
        assert model(images()).shape == (2, model.head_hidden_size)
        assert shallow(name, num_classes=0).eval()(images()).shape == (2, model.head_hidden_size)


@every_family
def test_a_new_classifier_takes_the_models_precision(name):
    model = shallow(name, num_classes=7).double().eval()
    model.reset_classifier(4)
    with torch.inference_mode():
        assert model(images().double()).dtype is torch.float64


@pytest.mark.parametrize("name", PYRAMIDS)
@pytest.mark.parametrize("size", [ODD, WIDE], ids=str)
def test_features_only_gives_a_pyramid(name, size):
    model = shallow(name, features_only=True).eval()
    strides = {"cvt_13": [4, 8, 16], "glnet_nano": [2, 4, 8]}.get(name, [4, 8, 16, 32])
    assert model.feature_info.reduction() == strides
    with torch.inference_mode():
        maps = model(images(size))
    for stride, channels, x in zip(strides, model.feature_info.channels(), maps, strict=True):
        assert x.shape[:2] == (2, channels)
        floor = tuple(side // stride for side in size)
        ceil = tuple(-(-side // stride) for side in size)
        assert all(low <= side <= high for low, side, high in zip(floor, x.shape[2:], ceil, strict=True))
        assert x.isfinite().all()


@pytest.mark.parametrize("name", COLUMNS)
def test_features_only_gives_maps_of_a_column(name):
    model = shallow(name, features_only=True, out_indices=(0, 1)).eval()
    stride = model.feature_info.reduction()[0]
    with torch.inference_mode():
        maps = model(images((64, 96)))
    assert [tuple(x.shape) for x in maps] == [(2, model.feature_info.channels()[0], 64 // stride, 96 // stride)] * 2


@each_family_or_slow
def test_features_only_drops_what_is_not_needed(name):
    whole = shallow(name, features_only=True)
    part = shallow(name, features_only=True, out_indices=(0,))
    assert sum(p.numel() for p in part.parameters()) < sum(p.numel() for p in whole.parameters())
    assert part.feature_info.channels() == whole.feature_info.channels()[:1] or name in COLUMNS


@each_family_or_slow
def test_intermediates_agree_with_forward_features(name):
    model = shallow(name, num_classes=7).eval()
    x = images()
    with torch.inference_mode():
        final, maps = model.forward_intermediates(x)
        torch.testing.assert_close(final, model.forward_features(x))
        assert len(maps) == len(model.feature_info)
        assert [m.shape[1] for m in maps] == [info["num_chs"] for info in model.feature_info]
        (first,) = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
        torch.testing.assert_close(first, maps[0])
        last_two = model.forward_intermediates(x, indices=2, intermediates_only=True)
        torch.testing.assert_close(last_two, maps[-2:])
        with pytest.raises(ValueError, match="output_fmt"):
            model.forward_intermediates(x, output_fmt="CHWN")


@each_family_or_slow
def test_layer_groups_cover_every_parameter(name):
    model = shallow(name)
    for coarse in (False, True):
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        named = [n for names in groups.values() for n in names]
        assert sorted(named) == sorted(n for n, _ in model.named_parameters())
    assert len(group_parameters(model, model.group_matcher())) >= 4
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.7)
    scales = {group["lr_scale"] for group in groups}
    assert len(scales) >= 4


@each_family_or_slow
def test_no_weight_decay_names_exist(name):
    model = shallow(name)
    assert model.no_weight_decay() <= {n for n, _ in model.named_parameters()}


@each_family_or_slow
def test_every_parameter_is_trained(name):
    model = shallow(name, num_classes=7).train()
    x = images((96, 64))
    model(x).square().mean().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not idle


@every_family
def test_gradient_checkpointing_changes_no_gradient_and_no_statistic(name):
    model = shallow(name, num_classes=7, drop_path_rate=0.2).train()
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    x = images()
    for candidate in (model, other):
        torch.manual_seed(1)
        candidate(x).square().mean().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    for (key, p), q in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(p, q), f"{key} was updated twice"


@every_family
def test_set_input_size_keeps_the_answer(name):
    model = shallow(name, num_classes=7).eval()
    x = images((96, 160))
    with torch.inference_mode():
        before = model(x)
        model.set_input_size((96, 160))
        torch.testing.assert_close(model(x), before)


@one_or_slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_finite(name, dtype):
    model = shallow(name, num_classes=7).to(dtype).eval()
    with torch.inference_mode():
        logits = model(images(SMALL).to(dtype))
        assert logits.dtype is dtype
        assert logits.isfinite().all()
        assert model(torch.zeros(1, 3, *SMALL, dtype=dtype)).isfinite().all()


@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_autocast_trains_without_nan(name, dtype):
    model = shallow(name, num_classes=7).train()
    with torch.autocast("cpu", dtype):
        loss = model(images(SMALL)).float().logsumexp(-1).mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@each_family_or_slow
def test_compiles_as_one_graph(name):
    model, x = shallow(name, num_classes=7).eval(), images()
    with torch.no_grad():
        torch.testing.assert_close(as_one_graph(model)(x), model(x))


@one_or_slow
def test_trains_as_one_graph(name):
    model = shallow(name, num_classes=7).train()
    got = as_one_graph(model)(images())
    assert got.shape == (2, 7)
    got.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def as_one_graph(model):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@one_or_slow
def test_exports_with_dynamic_batch_and_size(name):
    model = shallow(name, num_classes=7).eval()
    dynamic = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (images((96, 128)),), dynamic_shapes=(dynamic,)).module()
    with torch.inference_mode():
        for size, batch in ((ODD, 1), ((64, 64), 3), ((224, 160), 1)):
            x = images(size, batch)
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


@each_family_or_slow
def test_state_dict_round_trip(name):
    torch.manual_seed(1)
    model, twin = shallow(name, num_classes=7).eval(), shallow(name, num_classes=7).eval()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    x = images()
    with torch.inference_mode():
        assert torch.equal(model(x), twin(x))
        assert torch.equal(model(x), copy.deepcopy(model)(x))


@every_family
def test_channels_last_gives_the_same_answer(name):
    model = shallow(name, num_classes=7).eval()
    x = images()
    with torch.inference_mode():
        want = model(x)
        model = model.to(memory_format=torch.channels_last)
        got = model(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@every_family
def test_stray_output_stride_is_taken_and_other_strides_refused(name):
    shallow(name, output_stride=32)
    with pytest.raises(ValueError, match="output_stride=16"):
        shallow(name, output_stride=16)


@every_family
def test_evaluation_draws_no_random_numbers(name):
    model = shallow(name, num_classes=7).eval()
    before = torch.get_rng_state()
    with torch.inference_mode():
        model(torch.ones(2, 3, 64, 64))
    assert torch.equal(before, torch.get_rng_state())


@each_family_or_slow
def test_is_built_on_the_meta_device(name):
    with torch.device("meta"):
        model = timm.create_model(name)
        assert model(torch.empty(1, 3, 64, 64)).shape == (1, 1000)
