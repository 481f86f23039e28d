"""SoT against its published code: logits, features, sizes, and weights that are converted."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.sot import SoT
from support.golden import Case, case, cases, relative_error, strided
from support.small_sot import on_meta, small


def published(run: Case) -> SoT:
    name, norm = run.name.removesuffix("_densebn"), run.name.endswith("_densebn")
    model = timm.create_model(name, img_size=run.record["constructor"]["img_size"], dense_norm=norm)
    model.load_state_dict(run.state_dict())
    return model.eval()


def count(model: SoT) -> int:
    return sum(p.numel() for p in model.parameters())


GOLDEN = [run for name in ("sot_7", "sot_tiny", "sot_tiny_densebn", "sot_base") for run in cases(name)]


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        pytest.param(
            run,
            dtype,
            id=f"{run.name}-{run.id}-{str(dtype).removeprefix('torch.')}",
            marks=[pytest.mark.slow] if run.name == "sot_base" and (run.id, dtype) != ("112", torch.float32) else [],
        )
        for run in GOLDEN
        for dtype in (torch.float32, torch.float64)
    ],
)
def test_published_logits_are_reproduced(run: Case, dtype: torch.dtype) -> None:
    with torch.no_grad():
        logits = published(run).to(dtype)(run.input().to(dtype))
    assert relative_error(logits, run.logits) < (1e-9 if dtype == torch.float64 else 1e-4)


def test_published_features_are_reproduced_inside_the_network() -> None:
    run = case("sot_7", "112")
    model = published(run).double()
    names = {"stem": "patch_embed.stem", "stage1": "patch_embed.blocks.1", "stage5": "patch_embed.blocks.5"}
    names |= {"b0": "blocks.0", "b6": "blocks.6", "norm": "norm", "wr": "head.pool.proj", "svpn": "head.pool.norm"}
    names |= {"mgcrp": "head.pool", "visual_fc": "head.word_fc", "cls_fc": "head.class_fc"}
    heard: dict[str, Tensor] = {}
    for tap, path in names.items():
        model.get_submodule(path).register_forward_hook(lambda _m, _i, out, tap=tap: heard.update({tap: out}))
    with torch.no_grad():
        model(run.input().double())
    for tap, out in heard.items():
        assert relative_error(strided(out), run.feature(tap)) < 1e-9, tap
    assert heard.keys() == names.keys()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("sot_7", 5_443_422), ("sot_tiny", 7_983_550), ("sot_small", 27_011_000), ("sot_base", 76_774_966)],
)
def test_parameters_of_the_published_models(name: str, parameters: int) -> None:
    assert count(on_meta(name)) == pytest.approx(parameters, abs=500 if name == "sot_small" else 0)


@pytest.mark.parametrize(
    ("settings", "millions"),
    [
        # table 3a: class token only, by token embedding
        ({"pooling": "none", "token_embed": "linear"}, 3.992),
        ({"pooling": "none", "token_embed": "resnet"}, 4.292),
        ({"pooling": "none", "token_embed": "inception"}, 4.083),
        ({"pooling": "none", "token_embed": "densenet"}, 4.223),
        ({"pooling": "none", "token_embed": "nonlocal"}, 4.198),
        ({"pooling": "fc"}, 5.576),
        # table 3b: the published code counts a class-token classifier of 0.257 M that these two fusions do not use
        ({"fusion": "aggr_all", "pooling": "gap"}, 4.480 - 0.257),
        ({"fusion": "aggr_all", "pooling": "gcp"}, 5.413 - 0.257),
        ({"fusion": "aggr_all"}, 5.443 - 0.257),
        ({"fusion": "concat", "pooling": "gap"}, 4.736 - 0.257),
        ({"fusion": "concat", "pooling": "gcp"}, 5.669 - 0.257),
        ({"fusion": "concat"}, 5.699 - 0.257),
        ({"fusion": "sum", "pooling": "gap"}, 4.480),
        ({"fusion": "sum", "pooling": "gcp"}, 5.413),
        ({"fusion": "late"}, 5.443),
        ({"embed_dim": 240, "mlp_ratio": 2.5}, 5.381),
        ({"embed_dim": 240, "mlp_ratio": 2.5, "pooling": "none"}, 4.164),
    ],
)
def test_parameters_of_the_ablations(settings: dict[str, Any], millions: float) -> None:
    assert count(on_meta("sot_7", **settings)) / 1e6 == pytest.approx(millions, abs=0.0011)


@pytest.mark.parametrize(("name", "size", "gmacs"), [("sot_7", 112, 1.2006), ("sot_tiny", 224, 2.7527)])
def test_work_of_the_published_models(name: str, size: int, gmacs: float) -> None:
    model = on_meta(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, size, size, device="meta"))
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=1e-3)


class TestConvert:
    @pytest.fixture
    def official(self) -> dict[str, Tensor]:
        return case("sot_7", "112").state_dict()

    def test_leaves_its_input_and_unknown_entries_alone(self, official: dict[str, Tensor]) -> None:
        given = {**official, "visual_tokens.extra": torch.ones(1), "strange": torch.ones(1)}
        before = dict(given)
        out = on_meta("sot_7").convert(given)
        assert given == before
        assert {"visual_tokens.extra", "strange"} <= out.keys()
        assert out.keys() - {"visual_tokens.extra", "strange"} == on_meta("sot_7").state_dict().keys()

    def test_our_own_layout_comes_back_as_it_is(self) -> None:
        model = small()
        ours = model.state_dict()
        assert model.convert(ours) == ours

    @pytest.mark.parametrize("fusion", ["concat", "aggr_all"])
    def test_unused_classifier_is_dropped(self, official: dict[str, Tensor], fusion: str) -> None:
        out = on_meta("sot_7", fusion=fusion).convert(official)
        assert not [key for key in out if "class_fc" in key]

    def test_position_table_is_fitted_to_another_grid(self, official: dict[str, Tensor]) -> None:
        model = on_meta("sot_7", img_size=(160, 128))
        out = model.convert(official)
        assert out["pos_embed"].shape == model.pos_embed.shape
        assert torch.equal(out["pos_embed"][:, 0], official["pos_embed"][:, 0])

    def test_same_grid_at_twice_the_size_keeps_the_table(self, official: dict[str, Tensor]) -> None:
        assert on_meta("sot_7", img_size=224).convert(official)["pos_embed"] is official["pos_embed"]
