import pytest
import torch
from torch import Tensor

from saccade.layers.matrix_norms import ElementPower, Scale, SquareRoot
from saccade.layers.svpn import power_singular_values
from support.golden import part, read, relative_error, tensor


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class TestSquareRoot:
    @pytest.fixture
    def matrices(self) -> Tensor:
        a = tensor("sot_parts/mpn/A", [3, 8, 12]).double()
        return a @ a.mT / 12

    @pytest.mark.parametrize("num_iter", [1, 2, 3, 5])
    def test_matches_the_published_iteration(self, matrices: Tensor, num_iter: int) -> None:
        want = part("sot_parts", "mpn")[1][f"it{num_iter}"]
        assert relative_error(SquareRoot(num_iter)(matrices), want) < 1e-12

    def test_many_iterations_give_the_square_root(self, matrices: Tensor) -> None:
        root = SquareRoot(20)(matrices)
        assert torch.allclose(root @ root, matrices)
        assert torch.allclose(root, power_singular_values(matrices))

    def test_gradient_equals_finite_differences(self) -> None:
        assert torch.autograd.gradcheck(lambda a: SquareRoot(3)(a @ a.mT), (random(2, 3, 5).requires_grad_(),))

    def test_zero_matrix_has_a_finite_gradient(self) -> None:
        p = torch.zeros(2, 4, 4, requires_grad=True)
        out = SquareRoot(5)(p)
        assert torch.equal(out, torch.zeros_like(out))
        assert torch.autograd.grad(out.sum(), p)[0].isfinite().all()

    def test_refuses_no_iteration(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            SquareRoot(0)


class TestElementPower:
    def test_matches_the_published_columns(self) -> None:
        x = tensor("sot_parts/epn/x", [3, 5, 4]).double()
        assert relative_error(ElementPower()(x), torch.from_numpy(read("sot_parts")[1]["epn"])) < 1e-12

    def test_vector_has_unit_length(self) -> None:
        x = random(2, 3, 4, 4)
        out = ElementPower("vector")(x)
        assert torch.allclose(out.flatten(1).norm(dim=1), torch.ones(2, dtype=torch.float64))
        root = x.sign() * x.abs().sqrt()
        assert torch.allclose(out, root / root.flatten(1).norm(dim=1)[:, None, None, None], atol=1e-4)

    def test_zero_has_a_finite_gradient(self) -> None:
        x = torch.zeros(1, 1, 3, 3, requires_grad=True)
        assert torch.autograd.grad(ElementPower()(x).sum(), x)[0].isfinite().all()


class TestScale:
    def test_positive_factor_stays_positive(self) -> None:
        scale = Scale(0.5, learned=True, positive=True)
        assert torch.allclose(scale(torch.ones(1)), torch.tensor([0.5]))
        scale.log_factor.data.fill_(-50.0)
        assert scale(torch.ones(1)) > 0

    def test_fixed_factor_has_no_parameter(self) -> None:
        scale = Scale(0.5, learned=False)
        assert not list(scale.parameters())
        assert scale(torch.ones(1)) == 0.5
