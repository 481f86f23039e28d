import copy

import pytest
import timm
import torch
import torch.nn.functional as F

import saccade.models.glnet  # noqa: F401
from saccade.layers.token_label import TokenBox, swap_box
from saccade.plugins import HostError
from saccade.tasks import RelativeLocalization, SoftLabels, TokenLabelling, save_label_maps
from support.hosts import Plain
from support.token_labels import HOSTS, MIDDLE, SIZE, TARGETS, host, images, seeded, soft, teacher

SMALL = {"dims": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "token_label": True}
OWN = {"glnet_stl": SMALL, "glnet_4g": SMALL}  # with patches that do not overlap, and that do
every_host = pytest.mark.parametrize("name", HOSTS)


def own(name="glnet_stl", **kwargs):
    return timm.create_model(name, num_classes=5, **{**OWN[name], **kwargs})


# Hosts


@every_host
def test_tokens_are_the_hosts_last_map_after_its_norm(name):
    model = host(name).eval()
    task = TokenLabelling(model, mix_token=False).eval()
    with torch.no_grad():
        output, grid = task.run(images(), None)
        wanted = model.forward_intermediates(images(), indices=1, norm=True, intermediates_only=True)[0]
        assert grid == tuple(wanted.shape[2:])
        torch.testing.assert_close(output.tokens, task.aux_head(wanted.flatten(2).mT), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(output.logits, model(images()))


@every_host
def test_host_and_head_are_trained(name):
    task = TokenLabelling(host(name), teacher())
    task(images(), TARGETS, place=MIDDLE)["loss"].backward()
    assert all(p.grad.abs().sum() > 0 for p in task.aux_head.parameters())
    missing = [key for key, p in task.named_parameters() if p.grad is None]
    assert missing == []


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("size", [SIZE, (97, 131), (20, 20)], ids=str)
def test_a_model_with_its_own_head_uses_it(name, size):
    torch.manual_seed(0)
    model = own(name)
    task = TokenLabelling(model, teacher())
    assert task.aux_head is None
    assert task.state_dict().keys() == {f"model.{key}" for key in model.state_dict()}
    output, grid = task.eval().run(images(size=size), MIDDLE)
    wanted = model.forward_token_label(images(size=size), box=TokenBox(*(int(edge) for edge in output.box)))
    torch.testing.assert_close(output.tokens, wanted.tokens)
    torch.testing.assert_close(output.logits, wanted.logits)
    assert grid == tuple(model.forward_features(images(size=size)).shape[2:])
    result = task.train()(images(size=size), TARGETS, place=MIDDLE)
    result["loss"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_evaluation_gives_the_hosts_own_answer():
    for model in (host(), own()):
        task = TokenLabelling(model, teacher()).eval()
        wanted = model(images())
        assert torch.equal(task(images())["output"], wanted)
        result = task(images(), TARGETS)
        assert result.keys() == {"loss", "output", "classification"}
        torch.testing.assert_close(result["loss"], F.cross_entropy(wanted, TARGETS))
        assert "tokens" in task(images(), TARGETS, label_tokens=True)
        assert task.train()(images()).keys() == {"output"}


def test_a_plain_module_is_told_by_path_or_by_function():
    def run(module, x):
        features = module.conv(x)
        return module.head(features.mean((2, 3))), features

    model = Plain()
    with pytest.raises(ValueError, match="Plain does not report its number of classes; pass num_classes="):
        TokenLabelling(model, features="conv", dim=8)
    by_path = TokenLabelling(model, features="conv", dim=8, num_classes=5, grid=(4, 6))
    by_function = TokenLabelling(model, features=run, dim=8, num_classes=5, grid=(4, 6))
    by_function.load_state_dict(by_path.state_dict())
    one, two = (task(images(), TARGETS, place=MIDDLE)["loss"] for task in (by_path, by_function))
    torch.testing.assert_close(one, two)
    with pytest.raises(HostError, match=r"does not report the stride .* pass grid=.* or mix_token=False"):
        TokenLabelling(model, features="conv", dim=8, num_classes=5)(images(), TARGETS)
    assert TokenLabelling(model, features="conv", dim=8, num_classes=5, mix_token=False)(images(), TARGETS)


# MixToken


def test_swapped_pixels_are_swapped_embeddings_where_patches_do_not_overlap():
    model = host().eval()
    box = TokenBox(1, 2, 3, 5)
    with torch.no_grad():
        pixels = model.patch_embed.proj(swap_box(images(), box.scaled(16)))
        torch.testing.assert_close(pixels, swap_box(model.patch_embed.proj(images()), box))


def test_token_logits_come_back_to_their_own_image():
    """A host that looks at each patch alone answers for each token as if nothing had been mixed."""

    task = TokenLabelling(Plain(), features="conv", dim=8, num_classes=5, grid=(4, 6))
    mixed, _ = task.run(images(3), MIDDLE)
    plain, _ = task.run(images(3), None)
    torch.testing.assert_close(mixed.tokens, plain.tokens)
    assert not torch.allclose(mixed.logits[0], plain.logits[0])
    torch.testing.assert_close(mixed.logits[1], plain.logits[1])  # the middle one is its own partner


def test_same_generator_state_gives_the_same_box():
    task = TokenLabelling(host())
    state = torch.get_rng_state()
    one, two, other = (task(images(), TARGETS, generator=seeded(n))["loss"] for n in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    drawn = task.draw(2, device="cpu", generator=seeded(1))
    assert torch.equal(task(images(), TARGETS, **drawn)["loss"], one)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_mixed_or_drawn_on_request():
    task = TokenLabelling(host(), mix_token=False)
    generator = seeded()
    before = generator.get_state()
    assert task.draw(2, device="cpu", generator=generator) == {}
    result = task(images(), TARGETS, generator=generator)
    assert torch.equal(generator.get_state(), before)
    torch.testing.assert_close(result["output"], task.model(images()))


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": 1.0}, r"smoothing=1\.0 was given"),
        ({"num_classes": 6}, "num_classes=6 was given; the model has 5"),
        ({"teacher": timm.create_model("resnet10t", num_classes=9)}, "the teacher has 9 classes, the model 5"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TokenLabelling(host(), **options)


def test_labels_of_other_classes_are_refused(tmp_path):
    maps = save_label_maps(tmp_path, [("a", soft(1, 7, 2, 2)[0])])
    with pytest.raises(ValueError, match="the label maps have 7 classes, the model has 5"):
        TokenLabelling(host(), maps=maps)
    with pytest.raises(ValueError, match="both teacher= and maps="):
        TokenLabelling(host(), teacher(), maps=maps)
    with pytest.raises(ValueError, match="has 7 classes, the model 5"):
        TokenLabelling(host())(images(), TARGETS, labels=SoftLabels(soft(2, 7), soft(2, 7, 4, 6)))


def test_steps_that_do_not_fit_are_refused():
    task = TokenLabelling(host())
    with pytest.raises(TypeError, match="was given pairs"):
        task(images(), TARGETS, pairs=TARGETS)
    with pytest.raises(TypeError, match="the task has no maps="):
        task(images(), TARGETS, names=["a", "b"])
    with pytest.raises(ValueError, match=r"targets of shape \(2,\) were given as probabilities of 5 classes"):
        task(images(), TARGETS.float())
    model = host()
    with pytest.raises(ValueError, match="shares parameters"):
        TokenLabelling(model, model)
    assert all(p.requires_grad for p in model.parameters())


# A citizen of PyTorch


def test_head_is_saved_with_the_task_and_the_teacher_is_not():
    task = TokenLabelling(host(), teacher())
    extra = task.state_dict().keys() - {f"model.{key}" for key in task.model.state_dict()}
    assert extra == {"aux_head.weight", "aux_head.bias"}
    again = TokenLabelling(host(), task.teacher)
    again.load_state_dict(task.state_dict())
    one, two = (t(images(), TARGETS, place=MIDDLE)["loss"] for t in (task, again))
    assert torch.equal(one, two)
    assert {id(p) for p in task.parameters()}.isdisjoint(id(p) for p in task.teacher.model.parameters())


def test_copy_reads_its_own_host():
    task = TokenLabelling(host(), teacher())
    twin = copy.deepcopy(task)
    assert torch.equal(task(images(), TARGETS, place=MIDDLE)["loss"], twin(images(), TARGETS, place=MIDDLE)["loss"])
    with torch.no_grad():
        twin.model.patch_embed.proj.weight.normal_()
    one, two = (t(images(), TARGETS, place=MIDDLE)["tokens"] for t in (task, twin))
    assert not torch.isclose(one, two, rtol=1e-5)


def test_release_leaves_no_hook_on_the_host():
    task = TokenLabelling(host())
    task.release()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in task.model.modules())
    with pytest.raises(HostError, match="did not run"):
        task(images(), TARGETS)


@pytest.mark.parametrize("build", [host, own])
def test_double_stays_double_and_autocast_stays_finite(build):
    task = TokenLabelling(build(), teacher(), ground_truth=True)
    single = task(images(), TARGETS, place=MIDDLE)
    with torch.autocast("cpu", torch.bfloat16):
        result = task(images(), TARGETS, place=MIDDLE)
    result["loss"].backward()
    assert result["loss"].dtype == result["tokens"].dtype == torch.float32
    torch.testing.assert_close(result["loss"], single["loss"], rtol=0.1, atol=0.05)
    double = task.double()(images().double(), TARGETS, place=MIDDLE.double())
    assert double["loss"].dtype == torch.float64
    torch.testing.assert_close(double["loss"].float(), single["loss"], rtol=1e-3, atol=1e-3)


def test_head_takes_the_hosts_precision():
    task = TokenLabelling(host().bfloat16(), teacher())
    assert task.aux_head.weight.dtype == torch.bfloat16
    assert task(images().bfloat16(), TARGETS)["loss"].dtype == torch.float32


@pytest.mark.parametrize("build", [host, pytest.param(own, marks=pytest.mark.slow)])
def test_compiled_whole_it_takes_any_box_without_compiling_again(build):
    task = TokenLabelling(build(), teacher())
    compiled = torch.compile(task, fullgraph=True, backend="aot_eager")
    for place in (MIDDLE, torch.tensor([0.9, 0.1, 0.8]), torch.tensor([0.05, 0.6, 0.4])):
        results = []
        with torch._dynamo.config.patch(error_on_recompile=place is not MIDDLE):
            for run in (compiled, task):
                task.zero_grad()
                task.eval().train()
                torch.manual_seed(0)
                result = run(images(), TARGETS, place=place)
                result["loss"].backward()
                results.append((result["loss"], [p.grad.clone() for p in task.parameters()]))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_localization_can_be_added():
    task = RelativeLocalization(TokenLabelling(host(), teacher()), weight=1.0)
    result = task(images(), TARGETS, **task.draw(2, device="cpu", generator=seeded()))
    wanted = result["classification"] + 0.5 * result["tokens"] + result["localization"]
    torch.testing.assert_close(result["loss"].detach(), wanted)


@pytest.mark.parametrize(("build", "lr"), [(host, 2e-3), pytest.param(own, 1e-2, marks=pytest.mark.slow)])
def test_tokens_learn_the_teachers_labels(build, lr):
    torch.manual_seed(0)
    master = teacher()
    with torch.no_grad():
        master.fc.weight.mul_(20)  # decided
    task = TokenLabelling(build(), master, smoothing=0.0)
    optimizer = torch.optim.AdamW(task.parameters(), lr=lr)
    x, targets, generator, losses = torch.randn(4, 3, *SIZE), torch.tensor([0, 1, 2, 3]), seeded(), []
    dense = task.teacher(x, task.run(x, None)[1]).dense
    floor = float(-(dense * dense.log()).sum(1).mean())  # no cross-entropy to them is less than their entropy
    for _ in range(20):
        result = task(x, targets, generator=generator)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        losses.append(float(result["tokens"]) - floor)
    assert min(losses) > 0
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
