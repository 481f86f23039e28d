"""Recipes: the numbers of the papers' tables for every variant, and three steps of each."""

import re

import pytest

import saccade
from saccade.settings import ConfigError, TrainConfig, flatten, overlay
from saccade.settings.recipes import choose_variants, list_recipes, read_recipe, split_variants
from saccade.training import recipes
from saccade.training.optim import rate_at
from saccade.training.recipes import configure
from support.masks import make_masks
from support.questions import make_vilt, questions, write_questions
from support.texts import make_model, write_cola

pytestmark = pytest.mark.usefixtures("few_answers")

STRONG = {
    "augment.rand_ops": 2,
    "augment.rand_magnitude": 9,
    "augment.rand_spread": 0.5,
    "augment.rand_kind": "timm",
    "augment.rand_prob": 0.5,
    "augment.mixup": 0.8,
    "augment.cutmix": 1.0,
    "loss.smoothing": 0.1,
    "optim.name": "adamw",
}
GLMIX_TABLE_8 = STRONG | {
    "optim.lr": 2e-3,
    "optim.weight_decay": 0.05,
    "optim.batch_size": 2048,
    "schedule.warmup": 5,
    "schedule.epochs": 300,
    "optim.clip": 5.0,
    "augment.repeats": 1,
    "augment.erase": 0,
    "augment.jitter": 0,
    "keep.ema": None,
}
GLMIX_CODE = GLMIX_TABLE_8 | {
    "augment.repeats": 3,
    "augment.erase": 0.25,
    "augment.erase_kind": "pixel",
    "keep.ema": 0.9999,
}
SOT_S3 = STRONG | {
    "schedule.epochs": 310,
    "schedule.warmup": 5,
    "schedule.min_lr": 1e-5,
    "augment.erase": 0.25,
    "augment.erase_kind": "pixel",
    "augment.jitter": 0.4,
}
NOMMER = STRONG | {"schedule.epochs": 320, "schedule.warmup": 20, "optim.batch_size": 1024, "optim.weight_decay": 0.05}
NOMMER_C = STRONG | {"schedule.epochs": 30, "optim.batch_size": 1024, "optim.lr": 1e-5, "optim.weight_decay": 1e-8}
NOMMER_21K = STRONG | {
    "schedule.epochs": 90,
    "optim.batch_size": 4096,
    "optim.lr": 1e-2,
    "optim.weight_decay": 1e-2,
    "data.img_size": 224,
}
DRLOC_6 = STRONG | {"schedule.epochs": 100, "optim.batch_size": 1024, "optim.weight_decay": 0.05, "data.img_size": 224}
CB_42 = STRONG | {
    "schedule.epochs": 300,
    "optim.lr": 1e-3,
    "optim.lr_batch": 1024,
    "optim.weight_decay": 0.05,
    "augment.repeats": 3,
    "augment.erase": 0.25,
    "augment.erase_kind": "pixel",
    "augment.jitter": 0,
}
T2T = STRONG | {
    "schedule.epochs": 310,
    "schedule.warmup": 10,
    "optim.lr": 5e-4,
    "optim.batch_size": 512,
    "optim.weight_decay": 0.05,
    "model.drop_path": 0.1,
    "keep.ema": 0.99996,
}
SOT_S4 = {"optim.name": "adamw", "schedule.epochs": 10, "schedule.min_lr": 0.0, "schedule.curve": "poly"}
UPERNET = {
    "task": "segment:longest=2048,cat_max_ratio=0.75,uniform_scale=true",
    "data.img_size": 512,
    "optim.name": "adamw",
    "optim.lr": 6e-5,
    "optim.batch_size": 16,
    "optim.weight_decay": 0.01,
    "schedule.steps": 160_000,
    "schedule.curve": "poly",
    "schedule.warmup_steps": 1500,
    "augment.flip": 0.5,
    "augment.distort": 0.5,
    "augment.ratio": [1.0, 1.0],
    "optim.clip": None,
}
COCO = {
    "optim.name": "adamw",
    "optim.clip": None,
    "augment.ratio": [1.0, 1.0],
    "optim.lr": 1e-4,
    "optim.weight_decay": 0.05,
    "optim.batch_size": 16,
    "schedule.warmup_steps": 500,
    "schedule.curve": "steps",
}
GLMIX_B = {
    "optim.lr": 2e-4,
    "optim.batch_size": 32,
    "optim.weight_decay": 1e-4,
    "schedule.steps": 80_000,
    "schedule.curve": "cosine",
    "schedule.warmup_steps": 1000,
}
TABLES = [
    *(("glnet_paper", name, GLMIX_TABLE_8 | {"model.drop_path": rate}) for name, rate in
      (("glnet_4g", 0.15), ("glnet_9g", 0.3), ("glnet_16g", 0.4), ("glnet_stl", 0.1))),
    *(("glnet", name, GLMIX_CODE | {"model.drop_path": rate}) for name, rate in
      (("glnet_4g", 0.15), ("glnet_9g", 0.3), ("glnet_16g", 0.4), ("glnet_stl_paramslot", 0.1), ("glnet_9g_tl", 0.1))),
    ("token_label_paper", "glnet_4g_tl", {**GLMIX_TABLE_8, "schedule.epochs": 310, "model.drop_path": 0.1}),
    ("token_label_paper", "glnet_9g_tl", {**GLMIX_TABLE_8, "schedule.epochs": 310, "model.drop_path": 0.1}),
    ("token_label", "glnet_4g_tl", {"schedule.epochs": 310, "augment.mixup": 0, "augment.cutmix": 0}),
    *(("sot", name, SOT_S3 | {"optim.lr": 1e-3, "optim.batch_size": 1024, "optim.weight_decay": 0.03})
      for name in ("sot_7", "sot_tiny", "sot_small")),
    ("sot", "sot_base", SOT_S3 | {"optim.lr": 5e-4, "optim.batch_size": 512, "optim.weight_decay": 0.065}),
    *((recipe, f"nommer_{size}", numbers | {"model.drop_path": rate})
      for recipe, numbers in (("nommer", NOMMER), ("nommer_finetune", NOMMER_C), ("nommer_21k", NOMMER_21K))
      for size, rate in (("tiny", 0.1), ("small", 0.3), ("base", 0.5))),
    ("nommer_finetune", "nommer_base", {"data.img_size": 384}),
    *(("drloc", name, DRLOC_6 | {"optim.lr": 1e-3, "schedule.warmup": 20, "model.drop_path": rate}) for name, rate in
      (("swin_tiny", 0.2), ("t2t_vit_14", 0.0), ("cvt_13", 0.0), ("vit_base_patch16_224", 0.0), ("resnet50", 0.0))),
    ("drloc_finetune", "swin_tiny", DRLOC_6 | {"optim.lr": 5e-4, "schedule.warmup": 10, "model.drop_path": 0.2}),
    ("deit", "vit_tiny", CB_42 | {"schedule.warmup": 5}),
    ("deit", "vit_small_patch16_224", CB_42 | {"schedule.warmup": 5}),
    ("deit", "vit_base", CB_42 | {"schedule.warmup": 20}),
    ("t2t", "t2t_vit_14", T2T),
    *(("text", name, SOT_S4 | {"optim.lr": lr, "optim.batch_size": batch, "optim.betas": betas, "optim.eps": eps,
                               "optim.weight_decay": decay})
      for name, lr, batch, betas, eps, decay in (("openai-gpt", 6.25e-5, 32, [0.9, 0.999], 1e-8, 0.01),
                                                 ("bert-base-uncased", 2e-5, 24, [0.9, 0.999], 1e-8, 0.0),
                                                 ("spanbert-base-cased", 2e-5, 32, [0.9, 0.999], 1e-6, 0.01),
                                                 ("roberta-base", 2e-5, 32, [0.9, 0.98], 1e-6, 0.1))),
    ("segment_swin", "swin_tiny", UPERNET | {"model.drop_path": 0.2}),
    ("segment_cb", "vit_tiny", UPERNET),
    ("segment_glnet_upernet", "glnet_4g", UPERNET | {"optim.lr": 6e-4, "optim.batch_size": 32}),
    ("segment_glnet_fpn", "glnet_4g", UPERNET | GLMIX_B),
    ("detect_1x", "glnet_4g", COCO | {"schedule.epochs": 12}),
    ("detect_3x", "nommer_tiny", COCO | {"schedule.epochs": 36}),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "model", "numbers"), TABLES, ids=[f"{r}-{m}" for r, m, _ in TABLES])
def test_numbers_are_those_of_the_papers_tables(recipe, model, numbers):
    config = flatten(configure(recipe, {"model.name": model}))
    assert {name: config[name] for name in numbers} == numbers


@pytest.mark.parametrize(
    ("recipe", "model", "rate"),
    [
        ("drloc", "swin_tiny", 1e-3),
        ("drloc_finetune", "swin_tiny", 5e-4),
        ("nommer", "nommer_tiny", 1e-3),
        ("nommer_21k", "nommer_base", 1e-2),
        ("glnet", "glnet_4g", 2e-3),
        ("token_label", "glnet_4g_tl", 2e-3),
        ("token_label_paper", "glnet_4g_tl", 2e-3),
        ("sot", "sot_base", 5e-4),
    ],
)
def test_highest_rate_at_the_recipes_batch_is_the_published_one(recipe, model, rate):
    assert peak_rate(configure(recipe, {"model.name": model}).optim) == pytest.approx(rate)


def peak_rate(optim):
    return optim.lr * optim.batch_size / optim.lr_batch if optim.lr_batch else optim.lr


def test_rate_of_nommers_fine_tuning_is_constant():
    config = configure("nommer_finetune", {})
    peak = peak_rate(config.optim)
    rates = {rate_at(s, steps_per_epoch=7, peak=peak, schedule=config.schedule) for s in range(0, 210)}
    assert all(rate == pytest.approx(1e-5) for rate in rates)


def test_what_the_user_gives_wins_over_the_variant():
    given = {"model.name": "nommer_base", "model.drop_path": 0.0, "optim.lr": 0.5}
    config = configure("nommer", given)
    assert (config.model.drop_path, config.optim.lr) == (0.0, 0.5)


def test_the_recipes_own_model_has_its_variant():
    assert configure("nommer_finetune", {}).model.drop_path == 0.5
    assert configure("drloc", {}).model.drop_path == 0.2


@pytest.mark.parametrize("recipe", list_recipes())
def test_every_variant_fits_the_settings_and_some_model(recipe):
    import timm

    values, variants = split_variants(read_recipe(recipe), source=recipe)
    base = overlay(TrainConfig(), values)
    for pattern, settings in variants.items():
        given = {name: value for name, value in settings.items() if name != "grid"}  # what `tune` tries
        assert overlay(base, given, source=pattern) != base
        assert recipe in TEXTS or timm.list_models(pattern)


def test_later_patterns_win_and_tags_do_not_count():
    variants = {"vit_*": {"seed": 1}, "vit_base_*": {"seed": 2}}
    assert choose_variants(variants, "vit_base_patch16_224.augreg_in1k") == [{"seed": 1}, {"seed": 2}]
    assert choose_variants(variants, "swin_tiny_patch4_window7_224") == []


def test_a_misspelt_setting_of_a_variant_names_the_right_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("variants:\n  glnet_*: {optim: {weigth_decay: 0.1}}\n")
    with pytest.raises(ConfigError, match=r"optim\.weight_decay"):
        configure(str(tmp_path / "mine.yaml"), {})
    (tmp_path / "mine.yaml").write_text("variants: [glnet_4g]\n")
    with pytest.raises(ConfigError, match="patterns of model names"):
        configure(str(tmp_path / "mine.yaml"), {})


TEXTS = ("text", "modernbert", "deberta", "decoder")  # read by models of Hugging Face
GLNET = {"dims": [32, 64], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4}
NOMMER_SMALL = {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
COLUMN = {"embed_dim": 32, "depth": 2, "num_heads": 2}
SWIN = {"patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
TINY = {
    "cifar_vit": COLUMN,
    "deit": COLUMN,
    "drloc": SWIN,
    "drloc_finetune": SWIN,
    **dict.fromkeys(
        ("glnet", "glnet_paper", "token_label", "token_label_paper", "quick", "small", "cifar", "finetune"), GLNET
    ),
    **dict.fromkeys(("nommer", "nommer_21k", "nommer_finetune"), NOMMER_SMALL),
    **dict.fromkeys(("segment", "segment_finetune", "segment_glnet_fpn", "segment_glnet_upernet"), GLNET),
    **dict.fromkeys(("detect", "detect_1x", "detect_finetune", "detect_lsj"), GLNET),
    "detect_3x": NOMMER_SMALL,
    "segment_cb": COLUMN | {"depth": 4},
    "segment_swin": SWIN | {"patch_size": 4},
    "sot": COLUMN,
    "t2t": COLUMN,
    **{name: {} for name in TEXTS},
    "vqa": {},
}
BEGINS_WITH = {
    "finetune": "quick",
    "drloc_finetune": "drloc",
    "nommer_finetune": "nommer_21k",
    "segment_finetune": "segment",
}


def test_every_recipe_is_run():
    assert sorted(TINY) == list_recipes()


@pytest.mark.parametrize("recipe", [name for name in TINY if not name.startswith(("detect", "segment", "vqa", *TEXTS))])
def test_three_steps_on_the_embedded_set(recipe, tmp_path):
    checkpoint = {}
    if recipe in BEGINS_WITH:
        first = three_steps(BEGINS_WITH[recipe], tmp_path / "first", TINY[recipe], {})
        checkpoint = {"model.checkpoint": str(first.path)}
    run = three_steps(recipe, tmp_path / "run", TINY[recipe], checkpoint)
    assert run.metrics["step"] == 3
    assert 0 <= run.top1 <= 1


@pytest.mark.parametrize("recipe", [name for name in TINY if name.startswith("segment")])
def test_three_steps_on_masks(recipe, tmp_path):
    data = make_masks(tmp_path / "set", train=30)
    head = re.sub("(width|aux|inner)=[0-9]+", r"\1=32", configure(recipe, {}).model.head)
    more = {"model.head": head, "data.workers": 0}
    if recipe in BEGINS_WITH:
        first = three_steps(BEGINS_WITH[recipe], tmp_path / "first", TINY[recipe], more, data=str(data))
        more |= {"model.checkpoint": str(first.path)}
    run = three_steps(recipe, tmp_path / "run", TINY[recipe], more, data=str(data))
    assert run.metrics["step"] == 3
    assert 0 <= run.score <= 1


@pytest.mark.parametrize("recipe", TEXTS)
def test_three_steps_on_texts(recipe, tmp_path):
    data, model = write_cola(tmp_path / "set", train=30), make_model(tmp_path / "bert-tiny")
    run = three_steps(recipe, tmp_path / "run", {}, {}, data=str(data), model=str(model))
    assert run.metrics["step"] == 3
    assert -1 <= run.score <= 1


def test_three_steps_on_questions(tmp_path):
    data, model = write_questions(tmp_path / "set", list(questions(34))), make_vilt(tmp_path / "vilt")
    run = three_steps("vqa", tmp_path / "run", {}, {"data.img_size": 32}, data=str(data), model=str(model))
    assert run.metrics["step"] == 3
    assert 0 <= run.score <= 1


def three_steps(recipe, out, options, more, **given):
    settings = {
        "data.train_limit": 30,
        "optim.batch_size": 10,
        "optim.least_steps": None,
        "model.options": options,
        "engine.device": "cpu",
        **more,
    }
    if recipe not in (*TEXTS, "vqa"):
        given["img_size"] = 32
    return saccade.train(recipe=recipe, epochs=1, out=out, settings=settings, quiet=True, **given)


def test_the_model_of_a_checkpoint_is_decided_by_the_run_it_is_from(monkeypatch):
    monkeypatch.setattr(recipes, "model_of", lambda checkpoint: "test_vit" if checkpoint == "earlier" else None)
    record = []
    assert configure(None, {"model.checkpoint": "earlier"}, record=record).model.name == "test_vit"
    one = [one for one in record if one.setting == "model.name"][-1]
    assert (one.who, one.rule, one.why) == ("model", "trained-model", "the model of the run earlier")
    assert configure(None, {"model.checkpoint": "earlier", "model.name": "test_resnet"}).model.name == "test_resnet"
