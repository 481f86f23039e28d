import pytest
import timm
import torch
from torch import nn

from saccade.layers.activation import Gelu
from saccade.training.engine import use_fast_gelu


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto"])
def test_quickened_model_answers_the_same_bits_and_learns_the_same(name):
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "depth": 2} if name.startswith("vit") else {"depths": (1, 1, 1, 1)}
    model = timm.create_model(name, num_classes=4, **size).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def learn():
        model.zero_grad()
        answers = model(images)
        answers.square().sum().backward()
        return answers.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    answers, gradients = learn()
    names = list(model.state_dict())
    assert use_fast_gelu(model) > 1
    assert any(isinstance(module, Gelu) for module in model.modules())
    again, others = learn()
    assert torch.equal(again, answers)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(others, gradients, rtol=1e-9, atol=1e-12)


def test_activations_that_are_others_or_listened_to_stay():
    model = nn.Sequential(nn.GELU(approximate="tanh"), nn.ReLU(), nn.GELU(), nn.GELU())
    model[3].register_forward_hook(lambda *_: None)
    assert use_fast_gelu(model) == 1
    assert [type(module) for module in model] == [nn.GELU, nn.ReLU, Gelu, nn.GELU]
