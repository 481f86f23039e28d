"""Which kernels a value of the switch stands for."""

import pytest

from saccade.kernels.switch import VARIABLE, chosen

KNOWN = ["gelu", "norm", "attention"]


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("use", "names"),
    [
        ("auto", {"gelu", "norm", "attention"}),
        ("", {"gelu", "norm", "attention"}),
        ("off", set()),
        ("norm, gelu", {"norm", "gelu"}),
        ("-norm", {"gelu", "attention"}),
        ("-norm,-gelu", {"attention"}),
    ],
)
def test_names_stand_alone_and_with_a_minus_are_left_out(use, names):
    assert chosen(use, KNOWN) == names


def test_the_environment_decides_where_auto_is_asked_for(monkeypatch):
    monkeypatch.setenv(VARIABLE, "-gelu")
    assert chosen("auto", KNOWN) == {"norm", "attention"}
    assert chosen("gelu", KNOWN) == {"gelu"}
    monkeypatch.setenv(VARIABLE, "gleu")
    with pytest.raises(ValueError, match=rf"{VARIABLE}='gleu' was given.*did you mean 'gelu'"):
        chosen("auto", KNOWN)


@pytest.mark.parametrize("use", ["-nrom", "norm,-gelu", "off,norm", "auto,norm"])
def test_what_is_no_kernel_or_no_choice_is_refused(use):
    with pytest.raises(ValueError, match=f"kernels='{use}' was given"):
        chosen(use, KNOWN)


def test_a_name_is_refused_where_there_is_no_kernel_at_all():
    with pytest.raises(ValueError, match="there is no kernel 'gelu'"):
        chosen("gelu", [])
