import ast
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.layers.second_order import SecondOrder
from saccade.models.sot import SoT
from support.golden import part, part_state_dict, read, relative_error, tensor

FUSIONS = {"sum_fc": "sum", "concat": "concat", "aggre_all": "aggr_all", "sum_loss": "late", None: "sum"}
POOLINGS = {"MGCrP": "mgcrp", "GCP": "gcp", "GAP": "gap", "fc": "fc", None: None}
NORMS = {"svPN": "svpn", "sqrt_d": "sqrt_d", "sqrt_t": "sqrt_t", "ePN": "epn", "LN": "layer_norm", None: None}
HEADS = [p["name"] for p in read("sot_parts")[0]["parts"] if p["name"].startswith("head.")]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def ours(record: dict[str, Any]) -> SecondOrder:
    """The head that a published configuration describes, with its weights."""
    config = ast.literal_eval(record["config"])
    settings: dict[str, Any] = {"fusion": FUSIONS[config["fusion_type"]], "pooling": POOLINGS[config["type"]]}
    args = config["args"]
    if config["type"] == "MGCrP":
        settings |= {"num_heads": args["num_heads"], "head_dim": args["wr_dim"]}
        settings |= {"normalization": NORMS[args["normalization"]["type"]]}
    if config["type"] == "GCP":
        settings |= {"num_heads": args["num_heads"], "head_dim": args["qkv_dim"]}
    if "onlyvis" in record["name"]:
        settings |= {"class_token": None, "num_prefix_tokens": 0}
    # the model knows how to rename a head
    model = SoT(embed_dim=32, depth=1, num_heads=2, num_classes=10, token_embed="linear", **_for_model(settings))
    weights = {f"classifier.{key}": value for key, value in part_state_dict(record).items()}
    weights |= {"visual_tokens.x": torch.zeros(1)}
    weights = {key.removeprefix("head."): v for key, v in model.convert(weights).items() if key.startswith("head.")}
    head = model.head
    assert isinstance(head, SecondOrder)
    head.load_state_dict(weights)
    return head.double().eval()


def _for_model(settings: dict[str, Any]) -> dict[str, Any]:
    names = {"num_heads": "cov_heads", "head_dim": "cov_dim"}
    return {names.get(key, key): value for key, value in settings.items()}


@pytest.mark.parametrize("name", HEADS)
def test_matches_the_published_head(name: str) -> None:
    record, want = part("sot_parts", name)
    head = ours(record)
    x = tensor("sot_parts/heads/x", [2, 26, 32]).double()
    if "out1" in want:
        for got, reference in zip(head.logits_pair(x), (want["out0"], want["out1"]), strict=True):
            assert relative_error(got.detach(), reference) < 1e-9
        assert relative_error(head(x).detach(), want["out0"] + want["out1"]) < 1e-9
    else:
        assert relative_error(head(x).detach(), want["out0"]) < 1e-9


SMALL: dict[str, Any] = {"num_heads": 2, "head_dim": 3}


class TestFusion:
    def test_sum_adds_two_classifiers(self) -> None:
        head = SecondOrder(8, 5, **SMALL).double().eval()
        x = random(2, 10, 8)
        token, words = head.logits_pair(x)
        assert torch.allclose(head(x), token + words)
        changed = x.clone()
        changed[:, 0] += 1
        assert torch.equal(head.logits_pair(changed)[1], words)

    def test_concat_classifies_the_representation(self) -> None:
        head = SecondOrder(8, 5, fusion="concat", **SMALL).double().eval()
        x = random(2, 10, 8)
        assert head.class_fc is None
        assert torch.allclose(head(x), head.word_fc(head(x, pre_logits=True)))

    def test_aggr_all_treats_the_class_token_as_a_word(self) -> None:
        head = SecondOrder(8, 5, fusion="aggr_all", **SMALL).double().eval()
        x = random(2, 10, 8)
        assert head.class_fc is None
        assert torch.allclose(head(x), head(x.flip(1)))

    def test_late_scores_are_the_mean_of_both_softmaxes(self) -> None:
        head = SecondOrder(8, 5, fusion="late", late="scores", **SMALL).double().eval()
        x = random(2, 10, 8)
        token, words = head.logits_pair(x)
        assert torch.allclose(head(x).softmax(-1), (token.softmax(-1) + words.softmax(-1)) / 2)
        assert torch.allclose(head(x).exp().sum(-1), torch.ones(2, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("settings", "width"),
        [
            ({"fusion": "sum"}, 8 + 18),
            ({"fusion": "concat"}, 8 + 18),
            ({"fusion": "late"}, 8 + 18),
            ({"fusion": "aggr_all"}, 18),
            ({"pooling": "gcp"}, 8 + 21),
            ({"pooling": "gap"}, 16),
            ({"pooling": "gap", "fusion": "aggr_all"}, 8),
            ({"pooling": "fc", "hidden_dim": 32}, 32),
            ({"pooling": None}, 8),
            ({"class_token": None}, 18),
        ],
    )
    def test_representation_has_the_width_it_says(self, settings: dict[str, Any], width: int) -> None:
        head = SecondOrder(8, 5, **SMALL, **settings).double().eval()
        x = random(2, 10, 8)
        assert head.width == width
        assert head(x, pre_logits=True).shape == (2, width)
        head.reset(0)
        assert torch.equal(head(x), head(x, pre_logits=True))
        assert not [name for name, _ in head.named_parameters() if "_fc" in name]
        head.reset(7)
        assert head(x).shape == (2, 7)
        assert {p.dtype for p in head.parameters()} == {torch.float64}


class TestTokens:
    @pytest.mark.parametrize("fusion", ["sum", "concat", "aggr_all", "late"])
    @pytest.mark.parametrize("pooling", ["mgcrp", "gap"])
    @pytest.mark.parametrize("class_token", ["first", "last", None])
    def test_padding_never_counts(self, class_token: str | None, pooling: str, fusion: str) -> None:
        head = SecondOrder(8, 5, fusion=fusion, pooling=pooling, class_token=class_token, **SMALL).double().eval()
        x = random(2, 10, 8)
        long = torch.cat([x, torch.full((2, 3, 8), 1e5, dtype=torch.float64)], dim=1)
        mask = torch.arange(13).expand(2, -1) < 10
        assert torch.allclose(head(long, mask), head(x))

    def test_samples_of_different_length_are_independent(self) -> None:
        head = SecondOrder(8, 5, class_token="last", **SMALL).double().eval()
        x = random(2, 10, 8)
        mask = torch.arange(10) < torch.tensor([[10], [6]])
        got = head(x, mask)
        assert torch.allclose(got[0], head(x[:1])[0])
        assert torch.allclose(got[1], head(x[1:, :6])[0])

    def test_class_token_at_the_end_equals_one_at_the_front(self) -> None:
        first = SecondOrder(8, 5, **SMALL).double().eval()
        last = SecondOrder(8, 5, class_token="last", **SMALL).double().eval()
        last.load_state_dict(first.state_dict())
        x = random(2, 10, 8)
        assert torch.allclose(first(x), last(x.roll(-1, dims=1)))

    def test_register_tokens_are_not_words(self) -> None:
        head = SecondOrder(8, 5, num_prefix_tokens=3, **SMALL).double().eval()
        x = random(2, 10, 8)
        changed = x.clone()
        changed[:, 1:3] += 1
        assert torch.equal(head(x), head(changed))

    @pytest.mark.parametrize("fusion", ["sum", "aggr_all"])
    def test_without_class_token_only_words_classify(self, fusion: str) -> None:
        head = SecondOrder(8, 5, class_token=None, fusion=fusion, **SMALL).double().eval()
        assert head.class_fc is None
        x = random(2, 10, 8)
        assert torch.allclose(head(x), head.word_fc(head.pool(x)))

    def test_class_token_only_ignores_the_words(self) -> None:
        head = SecondOrder(8, 5, pooling=None).double().eval()
        x = random(2, 10, 8)
        changed = x.clone()
        changed[:, 1:] += 1
        assert torch.equal(head(x), head(changed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pooling", ["mgcrp", "gcp", "gap", "fc"])
def test_half_precision_gives_finite_logits_near_float32(pooling: str, dtype: torch.dtype) -> None:
    head = SecondOrder(8, 5, pooling=pooling, **SMALL).eval()
    x = random(2, 10, 8).float()
    want = head(x)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.allclose(head(x).float(), want, atol=0.02)
    assert torch.allclose(head.to(dtype)(x.to(dtype)).float(), want, atol=0.02)


def test_linear_layers_start_as_published() -> None:
    head = SecondOrder(256, 1000)
    assert head.word_fc.weight.detach().std().item() == pytest.approx(0.02, rel=0.02)
    assert head.pool.proj.weight.detach().std().item() == pytest.approx(0.02, rel=0.02)
    assert not head.class_fc.bias.any()
    assert head.pool.norm.start.detach().std().item() == pytest.approx(1, rel=0.6)


@pytest.mark.parametrize(
    "settings",
    [{"fusion": "mean"}, {"pooling": "max"}, {"class_token": "middle"}, {"late": "votes"}],
)
def test_refuses_unknown_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        SecondOrder(8, 5, **settings)


def test_refuses_settings_that_leave_nothing_to_classify() -> None:
    with pytest.raises(ValueError, match="excludes it"):
        SecondOrder(8, 5, pooling=None, class_token=None)
    with pytest.raises(ValueError, match="num_prefix_tokens"):
        SecondOrder(8, 5, num_prefix_tokens=0)
    with pytest.raises(TypeError, match="does not use these options"):
        SecondOrder(8, 5, pooling="gap", alpha=0.3)
    with pytest.raises(ValueError, match="does not have two classifiers"):
        SecondOrder(8, 5, fusion="concat", **SMALL).double().logits_pair(random(2, 10, 8))
