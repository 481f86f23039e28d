"""What SACCADE_KERNELS leaves out does not run, and the answers stay the same."""

import json
import os
import subprocess
import sys

import pytest

from saccade.layers import switch

ASKED = """
import json, sys, timm, torch, saccade
told = {}
for name, side in (("glnet_nano", 32), ("glnet_stl", 64), ("nommer_tiny", 64), ("sot_tiny", 64)):
    torch.manual_seed(0)
    try:
        model = timm.create_model(name, num_classes=7, img_size=side)
    except TypeError:
        model = timm.create_model(name, num_classes=7)
    model.eval()
    images = torch.randn(2, 3, side, side)
    with torch.inference_mode():
        answer = model(images)
    again = model(images)
    again.square().mean().backward()
    slopes = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
    told[name] = answer.flatten().tolist(), again.flatten().tolist(), slopes
print(json.dumps(told))
"""


def ask(kernels):
    env = {**os.environ, switch.VARIABLE: kernels}
    done = subprocess.run([sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_off_gives_the_same_answers_and_gradients():
    off, auto = ask("off"), ask("auto")
    for name, parts in off.items():
        for ours, theirs in zip(parts, auto[name], strict=True):
            assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-5), name


def test_a_list_of_gates_opens_them_alone_and_one_with_minus_leaves_them_out():
    assert switch.read("") == switch.read("auto") == set(switch.GATES)
    assert switch.read("off") == set()
    assert switch.read("norm, gelu") == {"norm", "gelu"}
    assert switch.read("-norm,-gelu") == set(switch.GATES) - {"norm", "gelu"}


@pytest.mark.parametrize("text", ["-nrom", "norm,-gelu", "off,norm"])
def test_what_is_no_gate_or_no_choice_is_refused(text):
    with pytest.raises(ValueError, match=switch.VARIABLE):
        switch.read(text)
