"""Context Broadcasting over texts and pairs: padding, causal hosts, and halves of a sequence."""

import copy

import pytest
import timm
import torch
from torch import nn

from saccade.models import nommer  # noqa: F401 (registers the backbones)
from saccade.plugins import ContextBroadcast, attach
from saccade.plugins.masks import read_mask
from support.broadcasting import DROPLESS, SMALL, bert, stir

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def gpt2():
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 4, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    return stir(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).double().eval())


def vilt():
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, vocab_size=50, max_position_embeddings=10, **SMALL, **DROPLESS
    )
    return stir(transformers.ViltModel(config).double().eval())


@pytest.fixture
def ids():
    return torch.randint(3, 40, (2, 6))


# Which tokens count


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("build", [bert, lambda: bert(attn_implementation="eager")], ids=["sdpa", "eager"])
def test_padding_never_counts(build, ids, scale):
    model = build()
    before = model(ids, MASK).last_hidden_state
    handle = attach(model, ContextBroadcast(scale=scale, layers="all"))
    for p in handle.parameters():
        nn.init.normal_(p)
    padded = model(ids, attention_mask=MASK).last_hidden_state
    short = model(ids[1:, :4]).last_hidden_state
    torch.testing.assert_close(padded[1, :4], short[0])
    assert not torch.allclose(padded[1, :4], before[1, :4])
    other = torch.where(MASK.bool(), ids, 45)
    torch.testing.assert_close(model(other, MASK).last_hidden_state[MASK.bool()], padded[MASK.bool()])
    assert torch.equal(model(ids, MASK).last_hidden_state, padded)  # by position as by keyword


def test_without_a_mask_all_tokens_count_even_after_a_call_with_one(ids):
    model = bert()
    attach(model, ContextBroadcast())
    want = model(ids).last_hidden_state
    torch.testing.assert_close(model(ids, torch.ones_like(ids)).last_hidden_state, want)
    model(ids, MASK)
    assert torch.equal(model(ids).last_hidden_state, want)


def test_mask_of_a_failed_call_is_forgotten(ids):
    model = bert()
    attach(model, ContextBroadcast())
    want = model(ids).last_hidden_state
    with pytest.raises(IndexError):
        model(ids + 100, MASK)
    assert torch.equal(model(ids).last_hidden_state, want)


@pytest.mark.parametrize("kind", ["wrapper", "inner"])
def test_mask_is_heard_wherever_it_comes_in(ids, kind):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, tokens, lengths):
            valid = torch.arange(tokens.shape[1]) < lengths[:, None]
            return self.inner(tokens, valid.long()).last_hidden_state

    inner = bert()
    twin = copy.deepcopy(inner)
    attach(twin, ContextBroadcast())
    want = twin(ids, MASK).last_hidden_state
    if kind == "wrapper":
        model = Wrapper(inner)
        attach(model, ContextBroadcast())
        got = model(ids, MASK.sum(1))
    else:
        model = transformers.BertForSequenceClassification(inner.config).double().eval()
        model.bert = inner
        attach(model, ContextBroadcast())
        got = model.bert(ids, MASK).last_hidden_state
    torch.testing.assert_close(got, want)


def test_blocks_that_take_no_mask_go_by_the_callers():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = timm.models.vision_transformer.Block(8, 2)

        def forward(self, x, attention_mask=None):
            return self.block(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Masked()
            self.last = timm.models.vision_transformer.Block(8, 2)

        def forward(self, x, attention_mask=None):
            return self.last(self.first(x))

    model = stir(Model().eval())
    attach(model, ContextBroadcast())
    seen = []
    model.last.broadcast.register_forward_hook(lambda module, args, output: seen.append(args[1]))
    model(torch.randn(2, 6, 8), MASK)
    model(torch.randn(2, 6, 8))
    assert torch.equal(seen[0], MASK.bool())
    assert seen[1] is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_blocks_have_the_mask_too(ids, reentrant):
    model = bert()
    handles = [attach(model, ContextBroadcast(scale=True)), attach(model, ContextBroadcast(position="mlp_front"))]
    model.train()

    def gradients():
        model.zero_grad()
        masks = (MASK, None, torch.ones_like(MASK))
        total = torch.stack([model(ids, mask).last_hidden_state for mask in masks]).sum(0)
        total[MASK.bool()].square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    stir(model)
    want = gradients()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    for got, expected in zip(gradients(), want, strict=True):
        torch.testing.assert_close(got, expected)
    copied = copy.deepcopy(model)
    handles.pop(0).detach()
    fewer = gradients()
    model.gradient_checkpointing_disable()
    for got, expected in zip(fewer, gradients(), strict=True):
        torch.testing.assert_close(got, expected)
    handles.pop().detach()
    assert not any("saccade" in type(value).__module__ for part in model.modules() for value in vars(part).values())
    model = copied
    assert torch.equal(gradients()[0], want[0])


@pytest.mark.parametrize("form", ["2d", "3d", "bool 4d", "additive 4d", "additive row"])
def test_masks_are_read_in_all_their_forms(form):
    seen = MASK.bool()[:, None, None, :].expand(2, 1, 6, 6)
    additive = torch.zeros(2, 1, 6, 6).masked_fill(~seen, torch.finfo(torch.float32).min)
    forms = {"2d": MASK, "3d": seen[:, 0].long(), "bool 4d": seen, "additive 4d": additive}
    mask = forms.get(form, additive[:, :, :1])
    assert torch.equal(read_mask(mask), MASK.bool())


def test_masks_that_cannot_be_read_are_refused(ids):
    assert read_mask(None) is None
    with pytest.raises(TypeError, match=r"of shape \(6,\); it must be a tensor of shape batch, tokens"):
        read_mask(torch.ones(6))
    model = bert()
    attach(model, ContextBroadcast())
    with pytest.raises(TypeError, match="mask is a str"):
        model(ids, "left")


def test_mask_of_other_tokens_is_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([timm.models.vision_transformer.Block(8, 2)])

        def forward(self, x, attention_mask=None):
            return self.blocks[0](x)

    model = Model()
    attach(model, ContextBroadcast())
    assert model(torch.randn(2, 5, 8)).shape == (2, 5, 8)
    with pytest.raises(ValueError, match=r"is for \(2, 6\) tokens, but the input has \(2, 5\)"):
        model(torch.randn(2, 5, 8), attention_mask=MASK)


def test_causal_host_stays_causal(ids):
    model = gpt2()
    before = model(ids).logits
    handle = attach(model, ContextBroadcast(layers="all"))
    logits = model(ids).logits
    torch.testing.assert_close(model(ids[:, :4]).logits, logits[:, :4])
    assert not torch.allclose(logits[:, 1:], before[:, 1:])
    handle.detach()
    attach(model, ContextBroadcast(layers="all", causal=False))
    assert not torch.allclose(model(ids[:, :4]).logits, model(ids).logits[:, :4])


def test_padding_on_the_left_of_a_causal_host(ids):
    model = gpt2()
    attach(model, ContextBroadcast(layers="all"))
    left = MASK.flip(1)
    places = (left.cumsum(1) - 1).clamp_min(0)
    padded = model(ids, attention_mask=left, position_ids=places).logits
    torch.testing.assert_close(padded[1, 2:], model(ids[1:, 2:]).logits[0])


def test_cached_tokens_are_not_forgotten_silently(ids):
    model = gpt2()
    attach(model, ContextBroadcast())
    with pytest.raises(IndexError):  # after a failed call as well
        model(ids + 100)
    with pytest.raises(ValueError, match="use_cache=False"):
        model.generate(ids, min_new_tokens=3, max_new_tokens=3, pad_token_id=0, do_sample=False)
    out = model.generate(ids, max_new_tokens=1, pad_token_id=0, do_sample=False, use_cache=False)
    assert torch.equal(out[:, -1], model(ids).logits[:, -1].argmax(-1))


@pytest.mark.parametrize("training", [False, True])
def test_padding_of_torch_encoders(training):
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).double().train(training)
    x, padding = torch.randn(2, 6, 16, dtype=torch.float64), MASK == 0
    with torch.set_grad_enabled(training):
        before = model(x, src_key_padding_mask=padding)
        handle = attach(model, ContextBroadcast(layers="all"))
        padded = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(padded[1, :4], model(x[1:, :4])[0])
        torch.testing.assert_close(padded[0], model(x[:1])[0])
        additive = torch.zeros(2, 6, dtype=torch.float64).masked_fill(padding, -torch.inf)
        torch.testing.assert_close(model(x, None, additive)[~padding], padded[~padding])
        handle.detach()
        assert torch.equal(model(x, src_key_padding_mask=padding), before)


@pytest.mark.parametrize("tokens", ["all", "text", "image"])
def test_halves_of_a_text_and_image_model(ids, tokens):
    model = vilt()
    dense, seen = model.encoder.layer[-1].output.dense, []
    dense.register_forward_hook(lambda module, args, output: seen.append(output))
    attach(model, ContextBroadcast(tokens=tokens, layers=[-1]))
    dense.register_forward_hook(lambda module, args, output: seen.append(output))
    model(input_ids=ids, attention_mask=MASK, pixel_values=torch.randn(2, 3, 32, 32, dtype=torch.float64))
    before, after = seen
    part = torch.zeros(2, before.shape[1], dtype=torch.bool)
    part[:, :6] = MASK.bool() if tokens != "image" else False
    part[:, 6:] = tokens != "text"
    assert before.shape[1] == 6 + 1 + 16
    for row in range(2):
        inside = before[row, part[row]]
        torch.testing.assert_close(after[row, part[row]], (inside + inside.mean(0)) / 2)
        assert torch.equal(after[row, ~part[row]], before[row, ~part[row]])


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_blocks_know_where_the_text_ends(ids, reentrant):
    model = vilt().train()
    attach(model, ContextBroadcast(tokens="text"))
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32, dtype=torch.float64)}

    def gradients():
        model.zero_grad()
        model(**inputs).last_hidden_state.square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    want = gradients()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    for got, expected in zip(gradients(), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_halves_are_not_guessed_in_a_block_that_is_run_by_itself():
    model = vilt()
    attach(model, ContextBroadcast(tokens="text"))
    block = model.encoder.layer[-1]
    with pytest.raises(RuntimeError, match="does not know where the text ends"):
        block(torch.randn(2, 9, model.config.hidden_size, dtype=torch.float64))
