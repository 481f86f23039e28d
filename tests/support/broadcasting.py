"""Helpers that several files of the tests of broadcast use."""

import pytest
import torch

from saccade.models import nommer  # noqa: F401 (registers the backbones)

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


SMALL = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
DROPLESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(**kwargs):
    config = transformers.BertConfig(vocab_size=50, **{**SMALL, **DROPLESS, **kwargs})
    return stir(transformers.BertModel(config).double().eval())


def stir(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model
