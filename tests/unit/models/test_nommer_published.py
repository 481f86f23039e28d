"""NomMer against its published code: logits, features, sizes, first weights and tables."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import saccade.models.nommer  # noqa: F401  (registers the models)
from saccade.models.nommer import Merge, NomMer
from support.golden import Case, case, cases, part, part_state_dict, relative_error, strided, tensor
from support.small_nommer import small


def published(case: Case) -> NomMer:
    sizes = case.record["constructor"]
    model = timm.create_model(case.name, img_size=sizes["input_size"], window_size=sizes["win_size"])
    model.load_state_dict(case.state_dict())
    return model.eval()


RUNS = [
    pytest.param("nommer_tiny", "224", torch.float32),
    pytest.param("nommer_tiny", "192_win6", torch.float32),
    pytest.param("nommer_tiny", "192_win6", torch.float64),
    pytest.param("nommer_base", "192_win6", torch.float32),
    pytest.param("nommer_tiny", "224", torch.float64, marks=pytest.mark.slow),
    pytest.param("nommer_base", "224", torch.float32, marks=pytest.mark.slow),
    pytest.param("nommer_base", "192_win6", torch.float64, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "id", "dtype"), RUNS)
def test_published_logits_are_reproduced(name, id, dtype):
    run = case(name, id)
    with torch.no_grad():
        logits = published(run).to(dtype)(run.input().to(dtype))
    assert relative_error(logits, run.logits) < (1e-9 if dtype == torch.float64 else 1e-4)


def test_every_golden_case_is_listed():
    assert {(c.name, c.id) for n in ("nommer_tiny", "nommer_base") for c in cases(n)} == {p.values[:2] for p in RUNS}


def test_published_features_are_reproduced_inside_the_network():
    run = case("nommer_tiny", "192_win6")
    model = published(run)
    heard = {}

    def listen(module, tap, change=lambda y: y):
        module.register_forward_hook(lambda _, __, y: heard.update({tap: strided(change(y))}))

    def to_nhwc(y):
        return y.permute(0, 2, 3, 1)

    first = model.stages[0].blocks[0]
    listen(model.stem, "stem")
    listen(first.mixer.cnn, "s1.b0.cnn", lambda y: y.permute(0, 3, 1, 2))
    listen(first.mixer.nominator.scores, "s1.b0.fc")
    listen(first.mixer, "s1.b0.mixer")
    listen(first.mlp, "s1.b0.ffn")
    listen(model.stages[0], "s1.out", to_nhwc)
    for i in (1, 2, 3):
        listen(model.stages[i].merge, f"merge{i}", to_nhwc)
    listen(model.stages[1], "s2.out", to_nhwc)
    listen(model.stages[2].blocks[3].mlp, "s3.b3.ffn")
    listen(model.stages[2], "s3.out", to_nhwc)
    listen(model.stages[3], "s4.out", lambda y: y[0])
    with torch.no_grad():
        model(run.input())
    assert len(heard) == 13
    for tap, values in heard.items():
        assert relative_error(values, run.feature(tap)) < 1e-5, tap


def test_published_merge_is_reproduced():
    record, arrays = part("nommer_parts", "merge_bhwc")
    merge = Merge(6, 12).double()
    merge.load_state_dict(part_state_dict(record))
    with torch.no_grad():
        y = merge(tensor("nommer_parts/merge/x", record["input_shape"]).double().permute(0, 3, 1, 2))
    assert relative_error(y.permute(0, 2, 3, 1), arrays["out"]) < 1e-12


@pytest.mark.parametrize(
    ("name", "params", "gmacs"),
    [("nommer_tiny", 22455804, 5.4647), ("nommer_small", 41532388, 10.0364), ("nommer_base", 73404900, 17.4648)],
)
def test_parameters_and_operations_are_the_published_ones(name, params, gmacs):
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(1, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == params
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=1e-4)


@torch.no_grad()
def test_initialisation_is_the_published_one():
    model = small(embed_dim=32)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert module.weight.std() == pytest.approx(0.02, rel=0.25), name
            assert module.bias is None or (module.bias == 0).all()
    assert model.stages[2].pos_embed.std() == pytest.approx(1, rel=0.1)
    assert model.stages[3].cls_token.std() == pytest.approx(1, rel=0.2)
    weight = model.stages[0].blocks[0].mixer.dct.perceive.weight  # kaiming uniform, a = sqrt 5: bound 1 / sqrt(fan in)
    assert weight.abs().max() == pytest.approx(weight.shape[1] ** -0.5, rel=0.02)


def test_published_tables_are_resampled_to_another_size_and_window():
    state = case("nommer_tiny", "192_win6").state_dict()
    before = {key: value.clone() for key, value in state.items()}
    model = timm.create_model("nommer_tiny", img_size=(224, 256), window_size=7)
    model.load_state_dict(state)
    assert all(torch.equal(state[key], before[key]) for key in before)
    assert model.stages[2].pos_embed.shape == (1, 14, 16, 384)
    key = "stages.0.blocks.0.mixer.window.relative_position_bias_table"
    assert model.state_dict()[key].shape == (169, 2)
    same = model.convert({key: model.state_dict()[key], "strange": torch.ones(1)})
    assert same[key] is not None
    assert "strange" in same


def test_our_own_weights_pass_conversion_untouched():
    state = small().state_dict()
    converted = small().convert(state)
    assert list(converted) == list(state)
    assert all(converted[key] is state[key] for key in state)


def test_no_published_constant_is_stored():
    assert not [key for key in small().state_dict() if "basis" in key or "index" in key]
