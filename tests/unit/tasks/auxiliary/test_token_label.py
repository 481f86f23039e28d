import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import saccade.models.glnet  # noqa: F401
from saccade.layers.token_label import TokenBox, place_box, swap_box, token_label_loss
from saccade.plugins import HostError
from saccade.tasks import RelativeLocalization, SoftLabels, TeacherLabels, TokenLabelling, save_label_maps
from support.hosts import Plain

SIZE = (64, 96)
TARGETS = torch.tensor([1, 3])
HOSTS = {
    "vit_tiny_patch16_224": {"depth": 1, "img_size": SIZE},
    "deit_tiny_distilled_patch16_224": {"depth": 1, "img_size": SIZE},
    "cait_xxs24_224": {"depth": 1, "img_size": SIZE},
    "pit_ti_224": {"depth": (1, 1, 1), "img_size": SIZE},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 24, "img_size": SIZE},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
    "resnet10t": {},
    "glnet_stl": {"dims": (32, 32, 64, 64), "depths": (1, 1, 1, 1)},
}
SMALL = {"dims": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "token_label": True}
OWN = {"glnet_stl": SMALL, "glnet_4g": SMALL}  # with patches that do not overlap, and that do
every_host = pytest.mark.parametrize("name", HOSTS)
MIDDLE = torch.tensor([0.2, 0.5, 0.5])  # a box on most grids


def host(name="vit_tiny_patch16_224", **kwargs):
    return timm.create_model(name, num_classes=5, **{**HOSTS.get(name, {}), **kwargs})


def own(name="glnet_stl", **kwargs):
    return timm.create_model(name, num_classes=5, **{**OWN[name], **kwargs})


def teacher():
    return timm.create_model("resnet10t", num_classes=5)


def images(count=2, size=SIZE):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(2))


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def soft(*shape, seed=0):
    return (2 * torch.randn(*shape, generator=seeded(seed))).softmax(1)


# The loss


@pytest.mark.parametrize("ground_truth", [False, True])
def test_loss_is_the_published_one_on_the_published_columns(ground_truth):
    task = TokenLabelling(host(), ground_truth=ground_truth, cls_weight=0.7, dense_weight=0.3)
    labels = SoftLabels(soft(2, 5), soft(2, 5, 4, 6))
    result = task(images(), TARGETS, labels=labels, place=MIDDLE)
    output, grid = task.run(images(), MIDDLE)
    on, off = 1 - 0.1 + 0.1 / 5, 0.1 / 5
    truth = torch.full((2, 5), off).scatter(1, TARGETS[:, None], on)
    columns = torch.cat([labels.whole[:, :, None], labels.dense.flatten(2)], 2) * on + off
    targets = torch.cat([truth[:, :, None], columns], 2)
    wanted = token_label_loss(output, targets, cls_weight=0.7, dense_weight=0.3, ground_truth=ground_truth)
    torch.testing.assert_close(result["loss"], wanted)
    torch.testing.assert_close(result["loss"].detach(), 0.7 * result["classification"] + 0.3 * result["tokens"])
    assert grid == (4, 6)
    assert output.box.area > 0


def test_loss_by_hand_on_a_host_that_says_what_it_is_told():
    class Told(nn.Module):
        num_classes = 2

        def forward(self, x):
            return x.mean((2, 3))[:, :2]

    model = Told()
    task = TokenLabelling(
        model, features=lambda m, x: (m(x), x[:, :2]), dim=2, layout="NCHW", grid=(1, 2), mix_token=False, smoothing=0.0
    )
    with torch.no_grad():
        task.aux_head.weight.copy_(torch.eye(2))
    x = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]], [[0.0, 0.0]]]])  # logits 2, 0; tokens 1, 0 and 3, 0
    labels = SoftLabels(torch.tensor([[0.25, 0.75]]), torch.tensor([[[[1.0, 0.5]], [[0.0, 0.5]]]]))
    result = task(x, torch.tensor([0]), labels=labels)

    def cross_entropy(p, logit):
        rest = torch.tensor(logit).exp().log1p()
        return p * (rest - logit) + (1 - p) * rest

    torch.testing.assert_close(result["classification"], cross_entropy(0.25, 2.0))
    torch.testing.assert_close(result["tokens"], (cross_entropy(1.0, 1.0) + cross_entropy(0.5, 3.0)) / 2)
    torch.testing.assert_close(result["loss"].detach(), result["classification"] + 0.5 * result["tokens"])


def test_class_label_is_mixed_as_the_images_are():
    task = TokenLabelling(host(), smoothing=0.0, dense_weight=0.0)
    labels = SoftLabels(soft(2, 5), soft(2, 5, 4, 6))
    result = task(images(), TARGETS, labels=labels, place=MIDDLE)
    share = float(place_box(MIDDLE, (4, 6)).area) / 24
    assert 0 < share < 1
    mixed = (1 - share) * labels.whole + share * labels.whole.flip(0)
    torch.testing.assert_close(result["classification"], F.cross_entropy(result["output"], mixed).detach())


def test_without_teacher_or_labels_every_token_has_its_images_target():
    task = TokenLabelling(host(), mix_token=False)
    result = task(images(), TARGETS)
    output, _ = task.run(images(), None)
    wanted = F.cross_entropy(output.logits, TARGETS, label_smoothing=0.1)
    dense = F.cross_entropy(output.tokens.flatten(0, 1), TARGETS.repeat_interleave(24), label_smoothing=0.1)
    torch.testing.assert_close(result["loss"], wanted + 0.5 * dense)


def test_shares_of_one_class_equal_its_index():
    task = TokenLabelling(host(), teacher(), ground_truth=True)
    one, two = (task(images(), targets, place=MIDDLE)["loss"] for targets in (TARGETS, F.one_hot(TARGETS, 5).float()))
    torch.testing.assert_close(one, two)


# Labels


def test_teachers_labels_are_put_on_the_students_grid():
    master = teacher()
    task = TokenLabelling(host(), master, smoothing=0.0)
    labels = TeacherLabels(master)(images(), (4, 6))
    assert labels.dense.shape == (2, 5, 4, 6)
    one = task(images(), TARGETS, place=MIDDLE)
    two = task(images(), TARGETS, place=MIDDLE, labels=labels)
    torch.testing.assert_close(one["loss"], two["loss"])
    three = task(images(), TARGETS, place=MIDDLE, labels=TeacherLabels(master)(images()))  # on its own grid
    torch.testing.assert_close(one["loss"], three["loss"])


def test_teacher_sees_images_before_they_are_mixed():
    master = teacher()
    task = TokenLabelling(host(), master)
    shown = []
    master.conv1[0].register_forward_pre_hook(lambda _, args: shown.append(args[0]))
    task(images(), TARGETS, place=MIDDLE)
    torch.testing.assert_close(shown[0], images())


def test_labels_are_read_from_disk_by_name_crop_and_flip(tmp_path):
    maps = save_label_maps(tmp_path, [(name, soft(1, 5, 6, 6, seed=i)[0]) for i, name in enumerate("abc")])
    task = TokenLabelling(host(), maps=maps)
    step = {
        "names": ["c", "a"],
        "crops": torch.tensor([[0.1, 0.2, 0.6, 0.5], [0.0, 0.5, 0.7, 0.5]]),
        "flips": torch.tensor([True, False]),
    }
    read = maps.read(step["names"], (4, 6), crops=step["crops"], flips=step["flips"])
    one = task(images(), TARGETS, place=MIDDLE, **step)
    two = task(images(), TARGETS, place=MIDDLE, labels=read)
    assert torch.equal(one["loss"], two["loss"])
    with pytest.raises(TypeError, match="give names="):
        task(images(), TARGETS)
    with pytest.raises(ValueError, match="no label map of 'd'"):
        task(images(), TARGETS, names=["a", "d"])
    assert torch.equal(copy.deepcopy(task)(images(), TARGETS, place=MIDDLE, **step)["loss"], one["loss"])


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
