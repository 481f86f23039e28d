import pytest
import timm
import torch

from saccade.plugins import SqueezeExcite, attach


def vit():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes).double().eval()


def test_block_is_the_mlp_branch_gated_by_its_mean():
    model = vit()
    handle = attach(model, SqueezeExcite(reduction=4))
    block, x = model.blocks[-1], torch.randn(2, 17, 32, dtype=torch.float64)
    gate = block.squeeze
    middle = x + block.attn(block.norm1(x))
    got = block(x)
    handle.detach()
    branch = block.mlp(block.norm2(middle))
    hidden = (branch.mean(1) @ gate.fc1.weight.T + gate.fc1.bias).clamp_min(0)
    weight = torch.sigmoid(hidden @ gate.fc2.weight.T + gate.fc2.bias)[:, None]
    torch.testing.assert_close(got, middle + weight * branch)


def test_channels_first_and_last_agree():
    from saccade.plugins.squeeze import Squeeze

    x = torch.randn(2, 3, 4, 8)
    last, first = Squeeze(8, 2, layout="NHWC"), Squeeze(8, 2, layout="NCHW")
    first.load_state_dict(last.state_dict())
    torch.testing.assert_close(first(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), last(x))


@pytest.mark.parametrize(("reduction", "hidden"), [(16, 2), (4, 8), (100, 1)])
def test_parameters_follow_the_reduction(reduction, hidden):
    handle = attach(vit(), SqueezeExcite(reduction=reduction, layers="all"))
    assert sum(p.numel() for p in handle.parameters()) == 4 * (32 * hidden + hidden + hidden * 32 + 32)


def test_wrong_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction=0 was given"):
        SqueezeExcite(reduction=0)


def test_padding_does_not_open_the_gate():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)).eval()
    attach(model, SqueezeExcite())
    ids = torch.randint(3, 40, (1, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    padded, short = model(ids, mask).last_hidden_state, model(ids[:, :4]).last_hidden_state
    torch.testing.assert_close(padded[:, :4], short)
