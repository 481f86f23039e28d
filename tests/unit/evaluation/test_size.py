import re
from pathlib import Path

import pytest
import timm
from benchmarks.speed.size import model_size

import saccade
from saccade.settings.model_sizes import COUNTED, PUBLISHED
from support.golden import cases

# Golden name -> ours, and what the published model holds besides (its DRLoc head on 64 pairs).
GOLDEN = {
    "nommer_tiny": "nommer_tiny",
    "nommer_base": "nommer_base",
    "glnet_stl": "glnet_stl",
    "glnet_stl_paramslot": "glnet_stl_paramslot",
    "glnet_4g": "glnet_4g",
    "glnet_4g_tklb": "glnet_4g_tl",
    "sot_7": "sot_7",
    "sot_tiny": "sot_tiny",
    "sot_base": "sot_base",
    "cvt_13": "cvt_13",
    "t2t_vit_14": "t2t_vit_14",
}


@pytest.mark.parametrize(("golden", "name"), GOLDEN.items())
def test_trainable_parameters_equal_the_published_networks(golden, name):
    counts = cases(golden)[0].record["counts"]
    assert model_size(name).params == counts["params_trainable"] - counts.get("params_drloc_head", 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_is_near_the_papers_figure(name):
    size, paper = model_size(name), PUBLISHED[name]
    assert size.img_size == paper.img_size
    assert size.params / 1e6 == pytest.approx(paper.params, rel=0.04)
    if paper.gmacs is not None:
        # the papers' counters leave attention's products out or in, see docs/models.md
        assert size.macs / 1e9 == pytest.approx(paper.gmacs, rel=0.12)


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_that_is_kept_is_what_is_counted(name):
    size, kept = model_size(name), COUNTED[name]
    assert (size.params, size.img_size) == (kept.params, kept.img_size)
    assert size.macs == pytest.approx(kept.macs, rel=1e-3)  # PyTorch's counter may change a little


def test_every_backbone_has_a_count_and_a_published_figure():
    assert set(COUNTED) == set(saccade.list_backbones())
    assert set(PUBLISHED) == set(saccade.list_backbones()) - {"glnet_nano"}


def test_the_document_lists_every_backbone_with_its_size():
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| \S+ \| ([\d.]+) \|", text, re.MULTILINE)
    assert {name for name, *_ in rows} == set(saccade.list_backbones())
    assert f"registers {len(rows)} networks" in text
    small = {name: numbers for name, *numbers in rows if name in ("glnet_nano", "sot_7")}
    for name, numbers in small.items():
        size = model_size(name)
        assert numbers == [str(size.img_size), f"{size.params / 1e6:.2f}", f"{size.macs / 1e9:.2f}"]


def test_counts_of_a_known_model():
    size = model_size("vit_tiny_patch16_224")
    assert size.params == sum(p.numel() for p in timm.create_model("vit_tiny_patch16_224").parameters())
    tokens, dim, hidden = 197, 192, 768
    block = tokens * (4 * dim * dim + 2 * dim * hidden) + 2 * tokens * tokens * dim
    assert size.macs == 196 * 768 * dim + 12 * block + dim * 1000
