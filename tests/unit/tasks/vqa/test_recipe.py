"""The recipe of ViLT: optimizer and schedule, images that keep their aspect ratio, RandAugment, the head's rate."""

import csv

import numpy as np
import pytest
import torch
import transformers
from PIL import Image, ImageEnhance, ImageOps

import saccade
from saccade.building.build import build_model, load_model
from saccade.data.augment import Augment, Normalize
from saccade.data.rand_augment import NUMBER, Step
from saccade.runs.run import Run
from saccade.settings import AugmentConfig, ConfigError, DataConfig, overlay
from saccade.tasks.opening import open_samples
from saccade.tasks.vqa.encoding import AugmentImages
from saccade.tasks.vqa.hosts import QuestionHosts
from saccade.tasks.vqa.patches import PatchFraming, join_patches, split_patches
from saccade.tasks.vqa.task import AnswerQuestions
from saccade.tasks.vqa.vilt_augment import ViltStep
from saccade.training.loop import Interrupted, Loop
from saccade.training.optim import build_optimizer, rate_at, set_rate
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from support.questions import SIZE, make_vilt
from support.texts import WORDS, make_tokenizer

SIZES = [(24, 40), (40, 24), (30, 30), (20, 90), (100, 30)]  # height, width


@pytest.fixture(scope="module")
def vilt(tmp_path_factory):
    return make_vilt(tmp_path_factory.mktemp("vilt"))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder, draws = tmp_path_factory.mktemp("vqa"), np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        Image.fromarray(draws.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    rows = [
        (f"{n % 5}.png", "is the film bright", ("yes", "no")[n % 2], "train" if n < 12 else "val") for n in range(16)
    ]
    with (folder / "asked.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "question", "answer", "split"), *rows])
    return folder / "asked.csv"


def train(table, vilt, out, **more):
    options = {"epochs": 1, "batch_size": 4, "img_size": 32, "device": "cpu", "workers": 0, "quiet": True, **more}
    return saccade.train(str(table), task="vqa", model=str(vilt), out=out, **options)


def test_optimizer_and_decay_groups_are_those_of_vilts_code(vilt):
    settings = configure(None, {"task": "vqa", "model.name": str(vilt)})
    assert settings.recipe == "vqa"
    assert (settings.optim.batch_size, settings.schedule.epochs, settings.data.img_size) == (256, 10, 384)
    assert settings.data.keep_aspect
    model = transformers.ViltForQuestionAnswering.from_pretrained(vilt)
    model.classifier_prefix = QuestionHosts.classifier
    optimizer = build_optimizer(AnswerQuestions(model), settings.optim, device=torch.device("cpu"))
    set_rate(optimizer, 1e-4)
    assert type(optimizer) is torch.optim.AdamW
    assert all((group["betas"], group["eps"]) == ((0.9, 0.98), 1e-8) for group in optimizer.param_groups)
    found = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    for name, p in model.named_parameters():
        plain = name.endswith(".bias") or "norm" in name.lower() or name == "classifier.1.weight"
        rate = 1e-3 if name.startswith("classifier.") else 1e-4
        assert found[id(p)] == (pytest.approx(rate), 0.0 if plain else 0.01), name


def test_rate_rises_over_a_tenth_and_falls_in_a_straight_line_to_zero(vilt):
    schedule = configure(None, {"task": "vqa", "model.name": str(vilt)}).schedule
    rates = [rate_at(step, steps_per_epoch=10, peak=1e-4, schedule=schedule) for step in (0, 10, 55, 100)]
    assert rates == pytest.approx([1e-4 / 11, 1e-4, 5e-5, 0.0])


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (384, 384), (300, 2000), (427, 640), (1200, 500)])
def test_images_have_the_sizes_of_vilts_processor(size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    processor = transformers.ViltImageProcessor(do_rescale=False, do_normalize=False)
    want = torch.as_tensor(processor(Image.fromarray(image), return_tensors="pt")["pixel_values"])[0]
    framing = PatchFraming(384, 32)
    found = framing(image)
    got = join_patches(found["image"][None], *found["grid"].tolist())[0]
    assert framing.most == 12 * 19
    assert found["image"].shape == (228, 3, 32, 32)
    assert got.shape == want.shape
    assert (got.float() - want.float()).abs().max() <= 2  # of 255: Pillow rounds between rows and columns


def test_patches_are_in_row_major_order_and_come_back():
    images = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = split_patches(images, 2)
    assert patches.shape == (2, 6, 3, 2, 2)
    assert torch.equal(patches[0, 1, 0], images[0, 0, :2, 2:4])
    assert torch.equal(join_patches(torch.cat([patches, patches[:, :2]], dim=1), 2, 3), images)


def test_augmentation_dropout_and_tokens_are_those_of_vilts_code(tmp_path, table):
    config = transformers.ViltConfig(vocab_size=len(WORDS), max_position_embeddings=40, hidden_dropout_prob=0.0, **SIZE)
    transformers.ViltModel(config).save_pretrained(tmp_path)
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(tmp_path)
    given = {"task": "vqa", "model.name": str(tmp_path), "data.path": str(table)}
    settings = configure(None, given)
    a = settings.augment
    assert (a.rand_ops, a.rand_kind, a.rand_magnitude, a.rand_spread, a.rand_prob) == (2, "vilt", 3.0, 0.0, 1.0)
    assert (a.crop, a.flip, a.jitter, a.erase, a.mixup, a.cutmix) == ("none", 0.0, 0.0, 0.0, 0.0, 0.0)
    for task, dropout in ((settings.task, 0.1), ("vqa", 0.0), ("vqa:dropout=0.3,answers=2", 0.3)):
        choice, data = open_samples(task, settings.data)
        resolved, spec = resolve(overlay(settings, {"task": task}), choice, data, torch.device("cpu"))
        model = build_model(resolved.model, spec, seed=0)
        rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        assert rates - {0.0} == {dropout} - {0.0}
        assert spec.extra["tokens"]["limit"] == 40
    with pytest.raises(ValueError, match=r"dropout = 1\.0 was given"):
        open_samples("vqa:dropout=1.0", settings.data)


# Operations of ViLT's code at strength 9 of 30, in PIL.
OPERATIONS = {
    "AutoContrast": ImageOps.autocontrast,
    "Equalize": ImageOps.equalize,
    "Posterize": lambda image: ImageOps.posterize(image, 1),  # int(0.3 * 4) bits
    "Solarize": lambda image: ImageOps.solarize(image, 76.8),  # 0.3 * 256
    "SolarizeAdd": lambda image: ImageOps.solarize(image.point(lambda value: min(value + 33, 255)), 128),
    "Color": lambda image: ImageEnhance.Color(image).enhance(0.64),  # 0.1 + 0.3 * 1.8
    "Contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.64),
    "Brightness": lambda image: ImageEnhance.Brightness(image).enhance(0.64),
    "Sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(0.64),
    "Rotate": lambda image: image.rotate(9, Image.Resampling.BILINEAR),
    "ShearX": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0.09, 0, 0, 1, 0), 2),
    "ShearY": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 0, 0.09, 1, 0), 2),
    "TranslateX": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 30, 0, 1, 0)),
    "TranslateY": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, 30)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [(640, 480), (480, 640)])
def test_an_operation_is_that_of_vilts_code(name, size):
    waves = np.sin(np.arange(size[1])[:, None, None] / 40 + np.arange(size[0])[None, :, None] / 25 + np.arange(3))
    image = (100 + 80 * waves + np.random.default_rng(0).uniform(-20, 20, waves.shape)).astype(np.uint8)
    step = ViltStep(torch.tensor([NUMBER[name]]), torch.tensor([0.3]), torch.tensor([1.0]), torch.tensor([False]))
    got = step(torch.from_numpy(image).permute(2, 0, 1)[None].float(), torch.zeros(3, 1, 1))[0].permute(1, 2, 0).numpy()
    want = np.asarray(OPERATIONS[name](Image.fromarray(image))).astype(float)
    assert np.abs(want - image).max() > 5
    assert (np.abs(got - want).max(2) > 1).mean() < 1e-3  # but for pixels at the edge of what is moved


def test_vilts_operations_are_drawn_alike_and_never_invert():
    config = AugmentConfig(rand_ops=2, rand_kind="vilt", rand_magnitude=3.0, rand_spread=0.0, rand_prob=1.0)
    for number in range(2):
        step = ViltStep.draw(torch.arange(14_000), number, config)
        counts = torch.bincount(step.operation, minlength=15)
        assert counts[NUMBER["Invert"]] == 0
        assert ((counts[counts > 0] - 1000).abs() < 150).all()
        assert (counts > 0).sum() == len(OPERATIONS) == 14
        assert torch.equal(step.level, torch.full_like(step.level, 0.3))


def test_only_questions_have_vilts_operations():
    config = AugmentConfig(rand_ops=2, rand_kind="vilt")
    with pytest.raises(ConfigError, match="which only the task vqa has"):
        Augment(config, mean=[0.5] * 3, std=[0.5] * 3, img_size=8)


def test_images_of_several_sizes_in_a_batch_are_answered_as_transformers_does(vilt):
    model = transformers.ViltForQuestionAnswering.from_pretrained(vilt).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():  # so that every patch and place matters
        torch.nn.init.normal_(parameter, std=0.3)
    task, framing, draws = AnswerQuestions(model), PatchFraming(32, 8), np.random.default_rng(0)
    framed = [framing(draws.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    tokens = {"input_ids": torch.tensor([[2, 5, 6, 3]] * 5), "attention_mask": torch.ones(5, 4, dtype=torch.long)}
    batch = {name: torch.stack([one[name] for one in framed]) for name in ("image", "grid")}
    batch["image"] = Normalize([0.5] * 3, [0.5] * 3)(batch["image"])
    pixels, mask = torch.zeros(5, 3, 64, 64), torch.zeros(5, 64, 64, dtype=torch.long)
    for number, (rows, columns) in enumerate(batch["grid"].tolist()):
        joined = join_patches(batch["image"][number, None], rows, columns)[0]
        pixels[number, :, : rows * 8, : columns * 8], mask[number, : rows * 8, : columns * 8] = joined, 1
    with torch.no_grad():
        want = model(**tokens, pixel_values=pixels, pixel_mask=mask).logits
        got = task.ask({**tokens, **batch}).logits
    assert want.std(0).max() > 1e-3
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def augmented(images, keys, grid=None, **more):
    config = AugmentConfig(
        crop="none", flip=0.0, rand_ops=2, rand_kind="vilt", rand_magnitude=3.0, rand_spread=0.0, **more
    )
    expand = AugmentImages(Normalize([0.0] * 3, [1.0] * 3), config, torch.full((3, 1, 1), 128.0))
    batch = {"image": images, "key": keys, "target": torch.zeros(len(images), 2)}
    return expand(batch if grid is None else {**batch, "grid": grid})["image"]


def test_each_image_is_augmented_by_its_key_whatever_else_is_in_the_batch():
    framing, draws = PatchFraming(32, 8), np.random.default_rng(0)
    framed = [framing(draws.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    images, grid = (torch.stack([one[name] for one in framed]) for name in ("image", "grid"))
    keys = torch.arange(5) * 7919 + 3
    together = augmented(images, keys, grid)
    alone = torch.cat([augmented(images[n, None], keys[n, None], grid[n, None]) for n in range(5)])
    torch.testing.assert_close(together, alone, atol=0, rtol=0)
    assert ((together * 255 - images).abs().amax((1, 2, 3, 4)) > 2).sum() >= 4  # few draws leave an image as it is
    for number, (rows, columns) in enumerate(grid.tolist()):
        whole = join_patches(images[number, None], rows, columns)
        changed = augmented(whole, keys[number, None])
        torch.testing.assert_close(join_patches(together[number, None], rows, columns), changed, atol=0, rtol=0)


def test_an_oblong_image_is_turned_and_not_stretched():
    image = np.zeros((40, 80, 3), dtype=np.uint8)
    image[:, 30:50] = 255
    step = Step(torch.tensor([NUMBER["Rotate"]]), torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([False]))
    got = step(torch.from_numpy(image).permute(2, 0, 1)[None].float(), torch.zeros(3, 1, 1))[0].permute(1, 2, 0).numpy()
    turned = [np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR)) for angle in (15, -15)]
    assert min(np.abs(got - one.astype(float)).mean() for one in turned) < 1


def test_a_run_keeps_aspect_ratios_and_answers_as_it_was_validated(vilt, table, tmp_path):
    done = train(table, vilt, tmp_path / "run", plugins=["broadcast:scale=true,tokens=image"])
    config, (_, spec) = Run.open(done.path).config(), load_model(done.path)
    assert (config.augment.rand_ops, config.data.keep_aspect, spec.extra["patch"]) == (2, True, 8)
    given = Run.open(done.path).predictions()
    data = open_samples("vqa", DataConfig(path=str(table)))[1]
    lines = [f"{table.parent / data.val.name(n)}\t{data.val.questions[n]}" for n in given["place"]]
    told = [one.answer.text.split(" ")[0] for one in saccade.predict(done.path, lines)]
    assert told == [spec.outputs[n] for n in given["answer"]]


def test_a_run_with_randaugment_that_was_stopped_and_resumed_equals_one_that_was_not(
    vilt, table, tmp_path, monkeypatch
):
    settings = {"keep.every_steps": 1}
    train(table, vilt, tmp_path / "whole", settings=settings)
    look = Loop._checkpoint_or_stop

    def stop(self):
        if self.step == 2:
            self.stop_signal = 15
        look(self)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            train(table, vilt, tmp_path / "parted", settings=settings)
    saccade.train(resume=tmp_path / "parted", quiet=True)
    one, two = (load_model(tmp_path / name)[0].state_dict() for name in ("whole", "parted"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    train(table, vilt, tmp_path / "plain", settings={"augment.rand_ops": 0})
    plain = load_model(tmp_path / "plain")[0].state_dict()
    assert not all(torch.equal(one[name], plain[name]) for name in one)


def test_the_scale_of_new_parameters_is_obeyed(vilt, table, tmp_path):
    moved = []
    for scale in (1.0, 10.0):
        out = tmp_path / f"run{scale}"
        train(table, vilt, out, settings={"optim.new_scale": scale, "schedule.warmup": 0, "optim.lr": 1e-5})
        weights = load_model(out)[0].state_dict()
        moved.append(weights["classifier.0.bias"].abs().max().item())  # it begins at zero
    assert moved[1] == pytest.approx(10 * moved[0], rel=0.2)


def test_runs_of_the_earlier_recipe_stay_square(vilt, table, tmp_path):
    done = train(table, vilt, tmp_path / "run", recipe="text")
    assert "patch" not in load_model(done.path)[1].extra
    assert not Run.open(done.path).config().data.keep_aspect


@pytest.mark.slow
def test_an_exported_graph_takes_patches_and_answers_as_the_run(vilt, table, tmp_path):
    run = train(table, vilt, tmp_path / "run").path
    done = saccade.export(run, out=tmp_path / "out")
    assert done.files[0].parity.same == 1
    lines = [f"{table.parent / f'{n}.png'}\tis the film bright" for n in range(5)]
    got, want = (
        [dict(one.answers) for one in saccade.predict(t, lines)] for t in (tmp_path / "out" / "model.onnx", run)
    )
    assert all(one == pytest.approx(two, abs=1e-5) for one, two in zip(got, want, strict=True))
