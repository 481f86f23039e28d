import pytest

from saccade.kernels import switch, table
from support import toy_kernels


@pytest.fixture
def rows(monkeypatch):
    """Give the table rows of a test's own."""
    monkeypatch.delenv(switch.VARIABLE, raising=False)
    monkeypatch.setattr(toy_kernels.FusedBlock, "calls", 0)
    monkeypatch.setattr(toy_kernels.CountedLinear, "calls", 0)

    def give(*kernels):
        monkeypatch.setattr(table, "KERNELS", kernels)

    return give
