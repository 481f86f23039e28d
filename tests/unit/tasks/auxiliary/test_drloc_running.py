"""The localization loss in precisions, compiled, copied, released and in several processes."""

import copy

import pytest
import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from saccade.plugins import HostError
from saccade.tasks import RelativeLocalization, Task
from support.drloc_hosts import SIZE, TARGETS, host, images, seeded
from support.fresh import run_ranks

# A citizen of PyTorch


def test_localization_is_saved_with_the_task_and_not_with_the_host():
    task = RelativeLocalization(host(), grids="blocks", loss="cross_entropy")
    extra = task.state_dict().keys() - {f"base.model.{key}" for key in task.model.state_dict()}
    assert extra == {f"locators.{key}" for key in task.locators.state_dict()}
    again = RelativeLocalization(host(), grids="blocks", loss="cross_entropy")
    again.load_state_dict(task.state_dict())
    x = images()
    one, two = (t(x, TARGETS, generator=seeded()) for t in (task, again))
    assert torch.equal(one["loss"], two["loss"])


def test_biases_of_the_locators_are_not_decayed():
    task = RelativeLocalization(host())
    spared = {id(p) for p in param_groups_weight_decay(task, 0.05)[0]["params"]}
    assert all((p.ndim == 1) == (id(p) in spared) for p in task.locators.parameters())


def test_copy_localizes_its_own_host():
    task = RelativeLocalization(host())
    twin = copy.deepcopy(task)
    x = images()
    assert torch.equal(task(x, generator=seeded())["loss"], twin(x, generator=seeded())["loss"])
    with torch.no_grad():
        twin.model.patch_embed.proj.weight.normal_()
    assert not torch.isclose(task(x, generator=seeded())["loss"], twin(x, generator=seeded())["loss"], rtol=1e-4)
    copy.deepcopy(task.model)(x)


def test_release_leaves_no_hook_on_the_host():
    task = RelativeLocalization(host(), grids="stages")
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in task.model.modules())  # noqa: E731
    assert hooks() == 2
    task.release()
    assert hooks() == 0
    with pytest.raises(HostError, match="did not run"):
        task(images())


def test_an_error_of_the_model_is_not_hidden():
    task = RelativeLocalization(host())
    with pytest.raises(AssertionError, match="Input"):
        task(images(size=(32, 32)))
    assert task.grid_recorder.recorded is None


def test_another_task_is_extended():
    class Shrink(Task):
        def __init__(self, model):
            super().__init__()
            self.model, self.epoch = model, None

        def loss(self, batch, *, generator=None, by=1.0):
            output = self.ask(batch)
            loss = by * output.square().mean()
            return {"loss": loss, "output": output, "size": loss.detach()}

        def draw(self, batch_size, *, device, generator=None):
            return {"by": torch.rand((), device=device, generator=generator)}

        def set_epoch(self, epoch, total_epochs):
            self.epoch = epoch

    inner = Shrink(host())
    task = RelativeLocalization(inner, weight=1.0)
    assert task.model is inner.model
    task.set_epoch(20, 100)
    assert inner.epoch == 20
    result = task(images(), **task.draw(2, device="cpu", generator=seeded()))
    torch.testing.assert_close(result["loss"], result["size"] + result["localization"])
    with pytest.raises(ValueError, match="within a task, give a path"):
        RelativeLocalization(inner, features=lambda model, x: (model(x), x))


def test_gradient_is_the_same_with_recomputed_blocks():
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = host()
        model.set_grad_checkpointing(recompute)
        task = RelativeLocalization(model, grids="blocks", weight=1.0)
        task(torch.ones(2, 3, *SIZE), generator=seeded())["loss"].backward()
        grads.append([p.grad for p in task.parameters() if p.grad is not None])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("loss", ["l1", "cross_entropy", "gaussian"])
def test_double_stays_double_and_autocast_stays_finite(loss):
    task = RelativeLocalization(host(), loss=loss)
    x = images()
    with torch.autocast("cpu", torch.bfloat16):
        result = task(x, TARGETS, generator=seeded())
    result["loss"].backward()
    assert result["loss"].dtype == result["localization"].dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in task.parameters() if p.grad is not None)
    single = task(x, TARGETS, generator=seeded())["localization"]
    torch.testing.assert_close(result["localization"], single, rtol=0.05, atol=0.02)
    double = task.double()(x.double(), TARGETS, generator=seeded())
    assert double["loss"].dtype == double["localization"].dtype == torch.float64
    torch.testing.assert_close(double["localization"].float(), single, rtol=1e-4, atol=1e-4)


def test_locators_take_the_hosts_precision():
    task = RelativeLocalization(host().bfloat16())
    assert {p.dtype for p in task.locators.parameters()} == {torch.bfloat16}
    assert task(images().bfloat16(), TARGETS)["loss"].isfinite()


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_whole_it_gives_the_same(recompute):
    model = host(depth=1)
    model.set_grad_checkpointing(recompute)
    task = RelativeLocalization(model, weight=1.0)
    x, drawn = images(), task.draw(2, device="cpu", generator=seeded())
    compiled = torch.compile(task, fullgraph=True, backend="aot_eager")
    results = []
    for run in (compiled, task):
        task.zero_grad()
        result = run(x, TARGETS, **drawn)
        result["loss"].backward()
        results.append((result["loss"], [p.grad.clone() for p in task.parameters()]))
    torch.testing.assert_close(*results)
    with torch._dynamo.config.patch(error_on_recompile=True):
        task.set_epoch(5, 100)  # another weight
        again = compiled(x, TARGETS, **drawn)
    torch.testing.assert_close(again["loss"], again["classification"] + 0.25 * again["localization"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "glnet_stl", "t2t_vit_7"])
@pytest.mark.parametrize("options", [{}, {"grids": "blocks", "loss": "gaussian"}], ids=["last", "blocks"])
def test_compiled_whole_it_draws_and_trains(name, options):
    task = RelativeLocalization(host(name), **options)
    result = torch.compile(task, fullgraph=True, backend="aot_eager")(images(), TARGETS)
    result["loss"].backward()
    assert all(p.grad.isfinite().all() for p in task.parameters())


@pytest.mark.slow
def test_compiled_in_parts_it_takes_a_generator():
    task, x = RelativeLocalization(host(depth=1)), images()
    loose = torch.compile(task, backend="aot_eager")(x, TARGETS, generator=seeded())
    torch.testing.assert_close(loose["loss"], task(x, TARGETS, generator=seeded())["loss"])


def ddp_worker(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    task = RelativeLocalization(host(), weight=1.0)
    x, drawn = torch.randn(4, 3, *SIZE, generator=seeded()), task.draw(4, device="cpu", generator=seeded())
    targets = torch.tensor([0, 1, 2, 3])
    task(x, targets, **drawn)["loss"].backward()
    wanted = [p.grad.clone() for p in task.parameters()]
    task.zero_grad()
    parallel = nn.parallel.DistributedDataParallel(task)
    mine = slice(2 * rank, 2 * rank + 2)
    for epoch in (0, 20):  # weight zero leaves no parameter without gradient
        task.zero_grad()
        task.set_epoch(epoch, 100)
        parallel(x[mine], targets[mine], pairs=drawn["pairs"][:, mine])["loss"].backward()
        assert all(p.grad is not None for p in task.parameters())
    for got, want in zip(task.parameters(), wanted, strict=True):
        torch.testing.assert_close(got.grad, want, rtol=1e-4, atol=1e-6)
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_gradient_of_the_joint_batch(tmp_path):
    run_ranks(ddp_worker, str(tmp_path), processes=2)
