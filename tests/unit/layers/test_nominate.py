import pytest
import torch
from torch import Tensor

from saccade.layers.nominate import (
    CANDIDATES,
    ConvAggregator,
    Nominator,
    Synergy,
    gumbel_softmax,
    nominate,
    sample_nomination,
)
from support.golden import part, part_state_dict, relative_error, tensor, uniform


def synergy(**options) -> Synergy:
    torch.manual_seed(0)
    arguments = {"num_heads": 2, "window_size": 3, "dct_size": 4, "cnn_reduction": 2, **options}
    mixer = Synergy(8, **arguments).double().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def listen(mixer: Synergy, name: str) -> list[Tensor]:
    heard = []
    getattr(mixer.nominator, name).register_forward_hook(lambda _, __, output: heard.append(output))
    return heard


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_published_samples_and_their_gradient_are_reproduced(temperature):
    record, arrays = part("nommer_parts", "gumbel")
    scores = tensor(record["logits_key"], record["shape"]).double().requires_grad_()
    noise = torch.from_numpy(uniform("nommer_parts/gumbel/U", record["shape"]))
    weight = tensor(record["w_key"], record["shape"]).double()
    hard = sample_nomination(scores, temperature=temperature, uniform=noise)
    soft = gumbel_softmax(scores, temperature=temperature, uniform=noise)
    (gradient,) = torch.autograd.grad((weight * hard).sum(), scores)
    for got, name in ((hard, "hard"), (soft, "soft"), (gradient, "grad_of_sum_w_hard")):
        assert torch.allclose(got, arrays[f"tau{temperature}.{name}"], rtol=0, atol=1e-12)


def test_a_sample_is_exactly_one_hot_even_in_half_precision():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        sample = sample_nomination(5 * torch.randn(100, 3, dtype=dtype))
        assert sample.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert set(sample.unique().tolist()) == {0.0, 1.0}
        assert (sample.sum(-1) == 1).all()


def test_samples_follow_the_softmax_of_the_scores():
    torch.manual_seed(0)
    scores = torch.tensor([1.0, 0.0, -1.0])
    share = sample_nomination(scores.expand(20000, 3)).mean(0)
    assert torch.allclose(share, scores.softmax(0), atol=0.02)


def test_noise_at_the_ends_of_its_range_is_finite():
    noise = torch.tensor([[0.0, 1 - 2**-24, 0.5]])
    assert gumbel_softmax(torch.zeros(1, 3), uniform=noise).isfinite().all()


def test_noise_comes_from_the_default_generator():
    scores = torch.zeros(50, 3)
    torch.manual_seed(1)
    first = sample_nomination(scores)
    second = sample_nomination(scores)
    torch.manual_seed(1)
    assert torch.equal(sample_nomination(scores), first)
    assert not torch.equal(first, second)


def test_equal_scores_are_all_nominated_but_not_in_half_precision():
    scores = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    assert nominate(scores).tolist() == [[1, 1, 0], [0, 1, 0]]
    assert nominate(scores.bfloat16()).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert nominate(scores.half()).dtype == torch.float16


def test_nominator_takes_the_best_scored_feature_in_eval():
    torch.manual_seed(0)
    nominator = Nominator(4).eval()
    features = [torch.randn(2, 5, 6, 4) for _ in range(3)]
    best = nominator.fc(sum(features)).argmax(-1)
    want = torch.stack(features).gather(0, best[None, ..., None].expand(1, -1, -1, -1, 4))[0]
    assert torch.equal(nominator(features), want)


def test_soft_nomination_mixes_by_softmax_without_noise():
    torch.manual_seed(0)
    nominator = Nominator(4, nomination="soft", temperature=2.0).train()
    features = [torch.randn(2, 5, 6, 4) for _ in range(3)]
    share = (nominator.fc(sum(features)) / 2).softmax(-1)
    want = sum(share[..., i : i + 1] * feature for i, feature in enumerate(features))
    assert torch.allclose(nominator(features), want, atol=1e-6)
    assert torch.equal(nominator(features), nominator(features))


def test_training_is_noisy_and_teaches_the_scores():
    torch.manual_seed(0)
    nominator = Nominator(4).train()
    features = [torch.randn(2, 9, 9, 4) for _ in range(3)]
    assert not torch.equal(nominator(features), nominator(features))
    nominator(features).square().sum().backward()
    assert nominator.fc.weight.grad.abs().sum() > 0


def published_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    from saccade.models.nommer import NomMer

    model = NomMer(embed_dim=8, depths=(1, 0, 0, 0), num_heads=(2, 2, 2, 2), num_classes=0)
    state = model.convert({f"transformer1.layers.0.0.fn.{key}": value for key, value in state.items()})
    return {key.removeprefix("stages.0.blocks.0.mixer."): value for key, value in state.items()}


def test_published_synergy_is_reproduced():
    record, arrays = part("nommer_parts", "hybrid_k4")
    mixer = Synergy(8, num_heads=2, window_size=7, dct_size=4, cnn_reduction=2).eval().double()
    mixer.load_state_dict(published_names(part_state_dict(record)))
    scores, shares = listen(mixer, "scores"), listen(mixer, "nomination")
    x = tensor("nommer_parts/hyb/x", record["input_shape"]).double()
    with torch.no_grad():
        y = mixer(x.flatten(1, 2), (28, 28)).unflatten(1, (28, 28))
    assert relative_error(y, arrays["out"]) < 1e-12
    assert relative_error(scores[0], arrays["nominator_logits"]) < 1e-12
    assert torch.equal(shares[0], nominate(arrays["nominator_logits"]))


@pytest.mark.parametrize("reduction", [2, 4])
def test_published_bottleneck_is_reproduced(reduction):
    record, arrays = part("nommer_parts", f"bottleneck_e{reduction}")
    bottleneck = ConvAggregator(16, reduction=reduction).eval().double()
    bottleneck.load_state_dict(part_state_dict(record))
    x = tensor("nommer_parts/bottleneck/x", record["input_shape"]).double()
    with torch.no_grad():
        y = bottleneck(x.permute(0, 2, 3, 1))
    assert relative_error(y.permute(0, 3, 1, 2), arrays["out"]) < 1e-12
    assert (y >= 0).all()


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_single_candidate_is_taken_as_it_is(name):
    mixer = synergy(candidates=(name,))
    assert mixer.nominator is None
    x = torch.randn(1, 30, 8, dtype=torch.float64)
    candidate = {"cnn": mixer.cnn, "window": mixer.window, "global": mixer.dct}[name]
    assert torch.equal(mixer(x, (5, 6)), candidate(x.unflatten(1, (5, 6))).flatten(1, 2))
    assert sum(part is not None for part in (mixer.cnn, mixer.window, mixer.dct)) == 1


def test_two_candidates_are_scored_by_two():
    mixer = synergy(candidates=("cnn", "global"))
    scores, shares = listen(mixer, "scores"), listen(mixer, "nomination")
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    y = mixer(x, (5, 6)).unflatten(1, (5, 6))
    assert scores[0].shape == shares[0].shape == (2, 5, 6, 2)
    places = x.unflatten(1, (5, 6))
    want = torch.where(shares[0][..., :1] == 1, mixer.cnn(places), mixer.dct(places))
    assert torch.allclose(y, want, atol=1e-12)


def test_prefix_tokens_read_the_map_through_the_global_attention_only():
    mixer = synergy(prefix=1)
    x = torch.randn(1, 31, 8, dtype=torch.float64, requires_grad=True)
    y = mixer(x, (5, 6))
    assert y.shape == x.shape
    want = mixer.dct.attn(torch.cat([x[:, :1], mixer.dct.compress(x[:, 1:].unflatten(1, (5, 6)))], 1))[:, :1]
    assert torch.allclose(y[:, :1], want)
    (gradient,) = torch.autograd.grad(y[0, 0].sum(), x)
    assert (gradient[0].abs().sum(-1) > 0).all()


def test_prefix_tokens_without_a_global_candidate_get_nothing():
    mixer = synergy(candidates=("cnn", "window"), prefix=1)
    y = mixer(torch.randn(1, 31, 8, dtype=torch.float64), (5, 6))
    assert (y[:, 0] == 0).all()
    assert (y[:, 1:] != 0).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nomination": "loud"}, "'hard', 'soft'"),
        ({"temperature": 0.0}, "must be above 0"),
        ({"cnn_reduction": 3}, "does not divide a stage's width 8"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        synergy(**arguments)
