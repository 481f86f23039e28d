"""The two methods that SoT's figure of words names: propagated relevance, and LIME."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import saccade
from saccade.explanation.left_out import draw_kept, fit_influence
from saccade.explanation.relevance import AttentionMaps, chain
from saccade.explanation.views.words import compute_influence, words_view
from saccade.plugins.tokens import HostError


class Encoder(nn.Module):
    """One layer of attention with one head, and a residual."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4)
        self.query, self.value = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        query, value = self.query(x)[:, None], self.value(x)[:, None]
        attention = F.softmax(torch.matmul(query, x[:, None].mT), dim=-1)
        return (x + torch.matmul(attention, value)[:, 0],)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.base_model = Encoder()
        self.head = nn.Linear(4, 2)

    def forward(self, input_ids):
        return self.head(self.base_model(input_ids)[0][:, 0])


def test_relevance_of_one_layer_is_that_of_the_papers_rules():
    model, ids = Classifier(), torch.tensor([[3, 1, 4, 5]])
    found = compute_influence(model, ids, target=1, method="relevance")
    # By hand, in numpy.
    base = model.base_model
    x, wq, wv, w = (
        one.detach().double().numpy()
        for one in (base.embed.weight[ids[0]], base.query.weight, base.value.weight, model.head.weight[1])
    )
    value, scores = x @ wv.T, (x @ wq.T) @ x.T
    attention = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    made = attention @ value
    hidden = x + made
    relevance = np.zeros_like(hidden)
    relevance[0] = hidden[0] * w  # gradient times value of what the classifier reads
    relevance /= np.abs(relevance).sum()
    kept, mixed = x * relevance / hidden, made * relevance / hidden  # a sum: in proportion to its terms ...
    sizes = np.abs(kept.sum()), np.abs(mixed.sum())
    mixed *= relevance.sum() * sizes[1] / sum(sizes) / mixed.sum()  # ... and to their totals
    of_attention = attention * ((mixed / made) @ value.T) / 2  # a product: one half
    gradient = np.zeros_like(attention)
    gradient[0] = value @ w
    want = np.maximum(gradient * of_attention, 0)[0]
    assert want.max() > 1e-3
    np.testing.assert_allclose(found.scores["both"], want, rtol=1e-4, atol=1e-7)


def carried(function, *tensors, relevance):
    with AttentionMaps(3, relevance=True):
        made = function(*tensors)
    return torch.autograd.grad(made, tensors, grad_outputs=relevance)


def test_relevance_is_shared_out_by_hand_worked_rules():
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    weight = torch.tensor([[3.0, 1.0], [-1.0, -0.5]])
    # First output: 3 by positive times positive. Second: 1 by negative times negative. The rest has no share.
    (found,) = carried(lambda one: F.linear(one, weight), x, relevance=torch.tensor([[6.0, 5.0]]))
    assert found.tolist() == [[6.0, 5.0]]
    a, b = torch.tensor([1.0, 1.0], requires_grad=True), torch.tensor([3.0, 1.0], requires_grad=True)
    first, second = carried(lambda a, b: a + b, a, b, relevance=torch.tensor([4.0, 2.0]))
    assert first.tolist() == pytest.approx([1.0, 1.0])
    assert second.tolist() == pytest.approx([3.0, 1.0])
    first, second = carried(lambda a, b: a * b, a, b, relevance=torch.tensor([4.0, 2.0]))
    assert (first.tolist(), second.tolist()) == ([2.0, 1.0], [2.0, 1.0])
    (found,) = carried(lambda one: one * 7.0 + 2.0, a, relevance=torch.tensor([4.0, 2.0]))
    assert found.tolist() == [4.0, 2.0]


def test_signs_and_differences_share_relevance_as_products_with_minus_one_do():
    a, b = torch.tensor([4.0, 3.0], requires_grad=True), torch.tensor([1.0, 1.0], requires_grad=True)
    relevance = torch.tensor([4.0, 2.0])
    (found,) = carried(lambda a: -a, a, relevance=relevance)
    assert found.tolist() == [4.0, 2.0]
    # a - b is 3 and 2: in proportion, a has 16 / 3 + 3 = 25 / 3 and -b has -4 / 3 - 1 = -7 / 3. By their totals, a gets
    # 25 / 32 of the 6, and b the rest.
    for difference in (lambda a, b: a - b, lambda a, b: torch.rsub(b, a), lambda a, b: a.clone().sub_(b)):
        first, second = carried(difference, a, b, relevance=relevance)
        assert first.tolist() == pytest.approx([x * 6 * 25 / 32 * 3 / 25 for x in (16 / 3, 3.0)])
        assert second.tolist() == pytest.approx([x * 6 * 7 / 32 * 3 / 7 for x in (4 / 3, 1.0)])
    for moved in (lambda a: 2 - a, lambda a: a - 2, lambda a: torch.sub(a, 2)):
        assert carried(moved, a, relevance=relevance)[0].tolist() == [4.0, 2.0]


def test_quotients_are_products_with_the_reciprocal():
    a, b = torch.tensor([4.0, 3.0], requires_grad=True), torch.tensor([2.0, 5.0], requires_grad=True)
    first, second = carried(lambda a, b: a / b, a, b, relevance=torch.tensor([4.0, 2.0]))
    assert (first.tolist(), second.tolist()) == ([2.0, 1.0], [2.0, 1.0])
    (found,) = carried(lambda b: 3.0 / b, b, relevance=torch.tensor([4.0, 2.0]))
    assert found.tolist() == [4.0, 2.0]


def test_operations_in_place_share_relevance_once():
    a, b = torch.tensor([1.0, 1.0], requires_grad=True), torch.tensor([3.0, 1.0], requires_grad=True)
    relevance = torch.tensor([4.0, 2.0])

    def scaled(a):
        made = a + 0.0
        made *= 7.0
        made.div_(2.0).neg_()
        return made

    def added(a, b):
        made = a + 0.0
        made += b
        return made

    assert carried(scaled, a, relevance=relevance)[0].tolist() == [4.0, 2.0]
    first, second = carried(added, a, b, relevance=relevance)
    assert first.tolist() == pytest.approx([1.0, 1.0])
    assert second.tolist() == pytest.approx([3.0, 1.0])
    with AttentionMaps(3, relevance=True):  # and give what they give
        assert scaled(a).tolist() == [-3.5, -3.5]


def test_layers_are_chained_last_first():
    early, late = torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, -1.0]])
    found = chain([early[None, None], late[None, None]], [torch.ones(1, 1, 2, 2)] * 2, length=2)
    # (I + late+)(I + early): the second token sees the first, which has seen the second.
    assert found.tolist() == [[1.0, 2.0], [3.0, 7.0]]


def bert(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes, **options)).eval()


def test_relevance_leaves_no_trace_and_ends_where_attention_is_cut():
    model, ids = bert(), torch.tensor([[3, 1, 4, 5]])
    before = model(ids).logits
    fused = compute_influence(model, {"input_ids": ids}, method="relevance").scores["both"]
    model.set_attn_implementation("eager")
    eager = compute_influence(model, {"input_ids": ids}, method="relevance").scores["both"]
    np.testing.assert_allclose(fused, eager, rtol=1e-3, atol=1e-8)  # fused attention is computed in the same steps
    assert (fused >= 0).all()
    assert fused.max() > 0
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model(ids).logits, before)
    for layer in model.bert.encoder.layer:  # without values, attention carries nothing
        nn.init.zeros_(layer.attention.self.value.weight)
    assert not compute_influence(model, {"input_ids": ids}, method="relevance").scores["both"].any()


def test_rotary_positions_keep_all_relevance():
    torch.manual_seed(0)
    query, key = (torch.randn(1, 1, 3, 4).requires_grad_() for _ in range(2))
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]).repeat(1, 2)[None]
    relevance = torch.rand(1, 1, 3, 4)
    with AttentionMaps(9, relevance=True):
        turned, _ = apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    (found,) = torch.autograd.grad(turned, query, relevance)
    assert found.sum().item() == pytest.approx(relevance.sum().item(), rel=1e-4)
    # By hand: half of the entries change places with a sign, and both terms share in proportion and by their totals.
    q, r = query.detach().double().numpy()[0, 0], relevance.double().numpy()[0, 0]
    cos, sin = angles.cos().double().numpy()[0], angles.sin().double().numpy()[0]
    kept, moved = q * cos, np.concatenate([-q[:, 2:], q[:, :2]], 1) * sin
    shares = [part * r / (kept + moved) for part in (kept, moved)]
    sizes = [abs(part.sum()) for part in shares]
    first, second = (part * r.sum() * size / sum(sizes) / part.sum() for part, size in zip(shares, sizes, strict=True))
    want = first + np.concatenate([second[:, 2:], second[:, :2]], 1)
    np.testing.assert_allclose(found.numpy()[0, 0], want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "ModernBert"])
def test_relevance_of_hosts_with_rotary_positions(kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"pad_token_id": 0} | ({} if kind == "ModernBert" else {"num_key_value_heads": 1})
    config = getattr(transformers, f"{kind}Config")(vocab_size=50, **sizes)
    model, found = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval(), {}
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        inputs = {"input_ids": torch.tensor([[3, 1, 4, 5, 2]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
        found[attention] = compute_influence(model, inputs, method="relevance").scores["both"]
    np.testing.assert_allclose(found["sdpa"], found["eager"], rtol=1e-3, atol=1e-8)
    assert (found["sdpa"] >= 0).all()
    assert found["sdpa"].max() > 0


def test_relevance_and_lime_are_split_for_a_head_on_class_token_and_words():
    model = bert()
    saccade.attach(model, saccade.SecondOrderHead(num_heads=1, head_dim=4))
    inputs = {"input_ids": torch.tensor([[3, 1, 4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}
    for method in ("relevance", "lime"):
        found = compute_influence(model, inputs, method=method)
        assert set(found.scores) == {"both", "class", "words"}
        assert all(part[4] == 0 for part in found.scores.values())  # padding


class Bag(nn.Module):
    """A linear score of the words, all of which are known."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids).sum(1))


def test_lime_of_a_bag_of_words_is_each_words_part():
    model, ids = Bag(), torch.tensor([[3, 1, 4, 1, 5]])
    found = compute_influence(model, ids, target=2, method="lime")
    want = (model.embed(ids)[0] @ model.head.weight[2]).detach().numpy()
    np.testing.assert_allclose(found.scores["both"], want, rtol=1e-3, atol=1e-4)
    with pytest.raises(HostError, match="no attention between all tokens"):
        compute_influence(model, ids, method="relevance")
    assert "choose another --method" in words_view(model, ids, method="relevance").absent


def test_pieces_of_a_word_are_left_out_together():
    model, ids = Bag(), torch.tensor([[3, 1, 4, 1, 5]])
    found = compute_influence(model, ids, target=0, method="lime", words=[[1, 2], [3]])
    parts = (model.embed(ids)[0] @ model.head.weight[0]).detach().numpy()
    np.testing.assert_allclose(found.scores["both"], [0, parts[1] + parts[2], 0, parts[3], 0], rtol=1e-2)


def test_draws_are_repeatable_and_the_fit_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.linear_model")
    kept = draw_kept(5, samples=40)
    assert (kept == draw_kept(5, samples=40)).all()
    assert kept[0].all()
    assert not kept[1:].all(1).any()
    scores = np.random.default_rng(1).normal(size=40)
    distance = 1 - np.sqrt(kept.mean(1))
    fitted = sklearn.Ridge(alpha=1e-3).fit(kept, scores, sample_weight=np.sqrt(np.exp(-((distance / 0.25) ** 2))))
    np.testing.assert_allclose(fit_influence(kept, scores), fitted.coef_, rtol=1e-6)
