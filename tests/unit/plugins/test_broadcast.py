import copy

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from saccade.models import nommer  # noqa: F401 (registers the backbones)
from saccade.plugins import ContextBroadcast, HostError, attach, find_host
from saccade.plugins.masks import read_mask

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
DROPLESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SWIN = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 2), "window_size": 4}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def vit(**kwargs):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 5, "num_heads": 2, "num_classes": 5}
    return stir(timm.create_model("vit_tiny_patch16_224", **{**sizes, **kwargs}).double().eval())


def bert(**kwargs):
    config = transformers.BertConfig(vocab_size=50, **{**SMALL, **DROPLESS, **kwargs})
    return stir(transformers.BertModel(config).double().eval())


def gpt2():
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 4, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    return stir(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).double().eval())


def vilt():
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, vocab_size=50, max_position_embeddings=10, **SMALL, **DROPLESS
    )
    return stir(transformers.ViltModel(config).double().eval())


def stir(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


@pytest.fixture
def ids():
    return torch.randint(3, 40, (2, 6))


def branches(model, block, x):
    """The residual sum before the MLP and the MLP branch, of a block without plug-in."""
    middle = x + block.attn(block.norm1(x))
    return middle, block.mlp(block.norm2(middle))


# What it computes


def test_branch_is_mixed_half_and_half_with_uniform_attention():
    model = vit()
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    middle, branch = branches(model, model.blocks[-1], x)
    uniform = torch.zeros(17, 17, dtype=torch.float64).softmax(-1) @ branch
    attach(model, ContextBroadcast())
    torch.testing.assert_close(model.blocks[-1](x), middle + (branch + uniform) / 2)


def test_scaled_branch_gets_a_share_of_uniform_attention():
    model = vit()
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    before, (middle, branch) = model.blocks[-1](x), branches(model, model.blocks[-1], x)
    handle = attach(model, ContextBroadcast(scale=True))
    assert torch.equal(model.blocks[-1](x), before)
    share = torch.randn(24, dtype=torch.float64)
    handle.parameters()[-1].data.copy_(share)
    torch.testing.assert_close(model.blocks[-1](x), middle + branch + share * branch.mean(1, keepdim=True))


def test_middle_and_end_of_the_mlp_agree():
    model = vit()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    outputs = {}
    for position in ("mlp", "mlp_mid", "mlp_front"):
        handle = attach(model, ContextBroadcast(position=position, layers="all"))
        outputs[position] = model(x)
        handle.detach()
    torch.testing.assert_close(outputs["mlp_mid"], outputs["mlp"], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(outputs["mlp_front"], outputs["mlp"])


def test_middle_and_end_of_the_scaled_form_differ_by_the_bias_alone():
    model = vit()
    block, x = model.blocks[-1], torch.randn(2, 17, 24, dtype=torch.float64)
    outputs = {}
    for position in ("mlp", "mlp_mid"):
        handle = attach(model, ContextBroadcast(position=position, scale=True))
        handle.parameters()[-1].data.fill_(0.3)
        outputs[position] = block(x)
        handle.detach()
    bias = (0.3 * block.mlp.fc2.bias).expand_as(x)
    torch.testing.assert_close(outputs["mlp"] - outputs["mlp_mid"], bias)


def test_attention_and_both():
    model = vit()
    block, x = model.blocks[-1], torch.randn(2, 17, 24, dtype=torch.float64)

    def mixed(y):
        return (y + y.mean(1, keepdim=True)) / 2

    middle = x + mixed(block.attn(block.norm1(x)))
    branch = block.mlp(block.norm2(middle))
    for position, want in (("attention", middle + branch), ("both", middle + mixed(branch))):
        handle = attach(model, ContextBroadcast(position=position))
        torch.testing.assert_close(block(x), want)
        handle.detach()


def test_class_token_can_be_left_out():
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2
    )
    model = stir(model.double().eval())
    x = torch.randn(2, 18, 24, dtype=torch.float64)
    middle, branch = branches(model, model.blocks[-1], x)
    attach(model, ContextBroadcast(class_token=False))
    got = model.blocks[-1](x) - middle
    torch.testing.assert_close(got[:, :2], branch[:, :2])
    words = branch[:, 2:]
    torch.testing.assert_close(got[:, 2:], (words + words.mean(1, keepdim=True)) / 2)


def test_class_token_of_the_last_stage_is_left_out_there_alone():
    model = timm.create_model("nommer_tiny", embed_dim=16, depths=(1, 1, 1, 1)).eval()
    attach(model, ContextBroadcast(class_token=False, layers="all"))
    assert [stage.blocks[0].broadcast.skip for stage in model.stages] == [0, 0, 0, 1]


@pytest.mark.parametrize("name", ["convnext_tiny", "convnext_atto"], ids=["channels_last", "channels_first"])
def test_maps_are_averaged_over_their_places(name):
    model = timm.create_model(name, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)).double().eval()
    mlp = model.stages[-1].blocks[0].mlp
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    x = x.permute(0, 3, 1, 2) if name == "convnext_atto" else x
    axes = (2, 3) if name == "convnext_atto" else (1, 2)
    branch = mlp(x)
    attach(model, ContextBroadcast())
    torch.testing.assert_close(mlp(x), (branch + branch.mean(axes, keepdim=True)) / 2)


def test_an_image_of_another_shape_is_averaged_whole():
    model = timm.create_model("swin_tiny_patch4_window7_224", **{**SWIN, "img_size": (32, 64)}).double().eval()
    seen = []
    mlp = model.layers[-1].blocks[-1].mlp
    attach(model, ContextBroadcast())
    mlp.fc2.register_forward_hook(lambda module, args, output: seen.append(output))
    mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    model(torch.randn(2, 3, 32, 64, dtype=torch.float64))
    before, after = (x.flatten(1, -2) for x in seen)
    assert before.shape[1] == 4 * 8
    torch.testing.assert_close(after, (before + before.mean(1, keepdim=True)) / 2)


def test_intermediate_features_have_it_too():
    model = vit()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    bare = model.forward_intermediates(x, intermediates_only=True)
    attach(model, ContextBroadcast())
    changed = [not torch.equal(a, b) for a, b in zip(bare, model.forward_intermediates(x)[1], strict=True)]
    assert changed == [False, False, True, True, True]


# Where it goes


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [("upper", [2, 3, 4]), ("all", [0, 1, 2, 3, 4]), ([0, -1], [0, 4]), ((-2, 3), [3])],
    ids=str,
)
def test_layers(layers, chosen):
    model = vit()
    attach(model, ContextBroadcast(layers=layers))
    assert [i for i, block in enumerate(model.blocks) if hasattr(block, "broadcast")] == chosen


@pytest.mark.parametrize("layers", [[5], [-6, 0], []], ids=str)
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(HostError, match=r"has 5 blocks, so 'upper', 'all' or numbers from -5 to 4"):
        attach(vit(), ContextBroadcast(layers=layers))


def test_blocks_that_feed_a_pyramid_are_spared():
    build = {
        "vit": lambda: vit(num_classes=0, features_only=True, out_indices=(1, 3)),
        "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", features_only=True, **SWIN),
        "nommer": lambda: timm.create_model("nommer_tiny", features_only=True, embed_dim=16, depths=(1, 2, 1, 2)),
    }
    chosen = {}
    for name, make in build.items():
        model = make()
        feeding = find_host(model).feeding
        attach(model, ContextBroadcast(layers="all", spare_pyramid=True))
        chosen[name] = [path for path, module in model.named_modules() if hasattr(module, "broadcast")]
        assert feeding
        assert not feeding & set(chosen[name])
    assert chosen["vit"] == ["model.blocks.0", "model.blocks.2"]
    assert chosen["swin"] == ["layers_2.blocks.0"]
    assert chosen["nommer"] == ["model.stages.1.blocks.0", "model.stages.3.blocks.0"]


def test_sparing_needs_to_know_the_pyramid_and_to_leave_something():
    with pytest.raises(HostError, match=r"feed a pyramid; build it with features_only=True .* layers="):
        attach(vit(), ContextBroadcast(spare_pyramid=True))
    model = vit(num_classes=0, features_only=True, out_indices=(3,))
    with pytest.raises(HostError, match="leaves ContextBroadcast no block"):
        attach(model, ContextBroadcast(layers=[3], spare_pyramid=True))


@pytest.mark.parametrize("position", ["attention", "both"])
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN), "attends within windows.*position='mlp'"),
        (
            lambda: MlpMixer(img_size=32, patch_size=8, embed_dim=24, num_blocks=2),
            "has no attention; choose position='mlp'",
        ),
    ],
    ids=["swin", "mixer"],
)
def test_attention_without_the_whole_image_is_refused(build, reason, position):
    model = build()
    with pytest.raises(HostError, match=reason):
        attach(model, ContextBroadcast(position=position))
    attach(model, ContextBroadcast())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 1, 24), 2), "build it with batch_first=True"),
        (lambda: bert(chunk_size_feed_forward=2), "chunk_size_feed_forward=2 splits texts"),
        (lambda: timm.create_model("mobilevit_xxs"), "folds the pixels"),
    ],
    ids=["sequence_first", "chunks", "mobilevit"],
)
def test_hosts_whose_tokens_do_not_pass_together_are_refused(build, reason):
    with pytest.raises(HostError, match=reason):
        attach(build(), ContextBroadcast())


def test_wrong_options_are_explained():
    with pytest.raises(ValueError, match=r"position='end' was given; allowed are 'mlp', 'mlp_mid'"):
        ContextBroadcast(position="end")
    with pytest.raises(ValueError, match=r"layers='lower' was given"):
        ContextBroadcast(layers="lower")
    with pytest.raises(ValueError, match=r"tokens='word' was given"):
        ContextBroadcast(tokens="word")
    with pytest.raises(HostError, match=r"tokens='text' chooses between"):
        attach(vit(), ContextBroadcast(tokens="text"))
    with pytest.raises(HostError, match=r"pass prefix_tokens=1"):
        attach(bert(), ContextBroadcast(class_token=False))


# What it costs


@pytest.mark.parametrize(
    ("position", "width"),
    [("mlp", 384), ("mlp_mid", 4 * 384), ("mlp_front", 384), ("attention", 384), ("both", 2 * 384)],
)
def test_added_parameters_of_vit_small(position, width):
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_224")
    before = sum(p.numel() for p in model.parameters())
    handle = attach(model, ContextBroadcast(position=position))
    assert handle.parameters() == []
    handle.detach()
    handle = attach(model, ContextBroadcast(position=position, scale=True, layers="all"))
    added = sum(p.numel() for p in model.parameters()) - before
    assert added == sum(p.numel() for p in handle.parameters()) == 12 * width
    if position == "mlp":
        assert round(100 * added / before, 2) == 0.02


def test_layer_decay_puts_the_scale_with_its_block():
    model = vit()
    attach(model, ContextBroadcast(scale=True))
    groups = timm.models.group_parameters(model, model.group_matcher())
    layer = {name: i for i, names in groups.items() for name in names}
    assert layer["blocks.3.broadcast.scale"] == layer["blocks.3.mlp.fc1.weight"]


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
