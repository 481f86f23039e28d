"""Every page that saccade writes, opened from the disk in a real browser without a network."""

import json
import re

import pytest

import saccade
from support.lists import write_images, write_list
from support.training import tiny
from support.written import beside, faults, pdf, rows, write_pages

pytest.importorskip("selenium")

NAMES = ("training", "comparison", "evaluation", "slots", "scaling", "pictures")
LEFT = "\ue012"  # the key


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="session")
def of_tasks(tmp_path_factory):
    """Evaluate and explain runs with several labels and with numbers."""
    root, pages = tmp_path_factory.mktemp("tasks"), {}
    images = write_images(root, train=24, val=10)
    for task, columns in {"multilabel": ("labels",), "regress": ("level", "red")}.items():
        data, runs = write_list(root / f"{task}.csv", images, columns), [root / task / name for name in ("one", "two")]
        for seed, run in enumerate(runs):
            settings = tiny(seed=seed, data__img_size=16)
            saccade.train(str(data), task=task, epochs=1, out=run, settings=settings, quiet=True)
        found = saccade.evaluate(runs, robust=True, resamples=100, out=root / task / "evaluation", quiet=True)
        shown = saccade.explain(runs[0], root / "images" / "030.png", against=runs[1]).save(root / task / "explanation")
        pages |= {f"{task}-evaluation": found.page, f"{task}-explanation": shown}
    return pages


@pytest.fixture
def opened(browser, written):
    """Open a page by its name, or any file; the network is off until the end."""
    from support.page import Page

    browser.get("about:blank")  # a page that is still open asks its server, and complains of being offline
    browser.get_log("browser")
    browser.set_network_conditions(offline=True, latency=0, throughput=0)

    def open_one(name, **how):
        page = Page(browser, (written[name] if isinstance(name, str) else name).as_uri())
        page.open(path="", **how)
        return page

    yield open_one
    browser.delete_network_conditions()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (320, "dark")])
@pytest.mark.parametrize("name", NAMES)
def test_page_stands_alone_fits_its_window_and_axe_finds_nothing_wrong(opened, axe, name, width, scheme):
    page = opened(name, width=width, scheme=scheme)
    assert page.browser.execute_script("return navigator.onLine") is False
    assert faults(page) == []
    assert page.faults(axe) == []
    ground = page.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("<img src='data:image/png;base64,AAAA' alt='gone'>", "no image: gone"),
        ("<img src='http://example.com/a.png' alt='far'>", "violates the following Content Security Policy"),
        ("<script>var x = 1;</script>", "violates the following Content Security Policy"),
        ("<p style='width: 400px'>x</p>", "the page is 4"),
        ("<p style='margin-left: -50px'>x</p>", "outside of the window"),
        ("<h5>deep</h5>", "heading out of order: deep"),
        ("<h1>second</h1>", "heading out of order: second"),
        ("<a href='#nowhere'>x</a>", "a link that leads nowhere"),
    ],
)
def test_a_page_with_a_fault_would_be_found_out(opened, written, tmp_path, added, told):
    whole = written["comparison"].read_text(encoding="utf-8")
    (tmp_path / "broken.html").write_text(whole.replace("</main>", f"{added}</main>"), encoding="utf-8")
    found = faults(opened(tmp_path / "broken.html", width=320))
    assert any(told in fault for fault in found), found


def test_a_page_that_asks_for_something_outside_would_be_found_out(opened, written, tmp_path):
    whole = written["comparison"].read_text(encoding="utf-8")
    open_to_all = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", whole)
    added = "<img src='http://example.com/a.png' alt=''></main>"
    (tmp_path / "broken.html").write_text(open_to_all.replace("</main>", added), encoding="utf-8")
    found = faults(opened(tmp_path / "broken.html"))
    assert "asked for http://example.com/a.png" in found
    assert any("ERR_INTERNET_DISCONNECTED" in fault for fault in found)


def test_axe_would_find_pale_words_and_empty_headers(opened, axe, written, tmp_path):
    whole = written["comparison"].read_text(encoding="utf-8")
    added = "<p style='color: #bbb'>pale</p><table><tr><th></th></tr><tr><td>x</td></tr></table></main>"
    (tmp_path / "broken.html").write_text(whole.replace("</main>", added), encoding="utf-8")
    found = {rule for rule, _ in opened(tmp_path / "broken.html").faults(axe)}
    assert {"color-contrast", "empty-table-header"} <= found


@pytest.mark.parametrize("name", NAMES)
def test_page_is_printed_on_white_on_a_few_sheets(opened, name):
    page = opened(name, scheme="dark")
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed := pdf(page)))
    assert printed.startswith(b"%PDF")
    assert 2 <= sheets <= 12
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    ground, ink = page.browser.execute_script(
        "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    )
    assert (ground, ink) == ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    assert not page.one("nav").is_displayed()
    assert all(one.is_displayed() for one in page.all(".panels > figure"))


@pytest.mark.parametrize(("name", "view"), [("scaling", "attention"), ("slots", "slots"), ("pictures", "attention")])
def test_layers_are_chosen_by_the_keyboard(opened, written, name, view):
    page = opened(name)
    figures = beside(written[name], "numbers.json")["samples"][0]["views"][view]["figures"]
    layers = sorted((one for one in figures.values() if "depth" in one), key=lambda one: one["depth"])
    group = f"input[name=p1-{view}]"
    panels = f"fieldset:has({group}) .panels > figure"

    def shown():
        return [one.text.strip() for one in page.all(panels) if one.is_displayed()]

    assert len(layers) > 1
    assert shown() == [layers[-1]["caption"]]
    page.tab_to(group)
    outline = "return getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert page.browser.execute_script(outline) == "solid"
    for layer in layers[-2::-1]:
        page.press(LEFT)
        assert shown() == [layer["caption"]]
        spoken = page.browser.execute_script("return document.activeElement.getAttribute('aria-label')")
        assert spoken == layer["layer"]


def test_charts_tell_the_values_under_the_pointer_and_show_a_part_of_themselves(opened, written):
    from selenium.webdriver.common.action_chains import ActionChains

    records = [json.loads(line) for line in (written["training"].parent / "metrics.jsonl").read_text().splitlines()]
    page = opened("training")
    chart = page.one("svg.chart")
    width = chart.size["width"]

    def ticks():
        texts = page.browser.execute_script(
            "return [...document.querySelector('svg.chart').querySelectorAll('.ticks text[text-anchor=middle]')]"
            ".map((one) => one.textContent)"
        )
        return [float(text) for text in texts]

    def line():
        return page.one("svg.chart .line.s1").get_attribute("d")

    whole, drawn = ticks(), line()
    ActionChains(page.browser).move_to_element_with_offset(chart, int(0.45 * width), 0).perform()
    said = page.text("figure.live .tip").splitlines()
    assert said[0] == "epoch 2"
    assert said[1] == f"training: {float(format(records[1]['train_loss'], '.4g')):g}"
    assert said[2].startswith("validation: ")
    hold = ActionChains(page.browser).move_to_element_with_offset(chart, 0, 0).click_and_hold()
    hold.move_by_offset(int(0.45 * width), 0).release().perform()
    assert ticks()[0] >= 1.4
    assert ticks() != whole
    assert line() != drawn
    page.one("figure.live .whole").click()
    assert ticks() == whole
    ActionChains(page.browser).move_to_element_with_offset(chart, 0, 0).double_click().perform()
    page.browser.execute_script("arguments[0].focus()", chart)
    page.press(LEFT)
    assert page.text("figure.live .tip").startswith("epoch ")
    page.press("+")
    assert ticks() != whole
    page.press("0")
    assert ticks() == whole
    assert page.console() == []


def test_training_report_tells_the_numbers_of_its_run(opened, written):
    summary = beside(written["training"], "summary.json")
    page = opened("training")
    lead = page.text("main .lead")
    assert f"{summary['val_top1']:.1%} of {summary['validation']['samples']} validation images" in lead
    told = dict(zip((one.text for one in page.all(".facts dt")), page.all(".facts dt + dd"), strict=True))
    assert told["Accuracy"].text == f"{summary['val_top1']:.2%}"
    assert told["Top-5 accuracy"].text == f"{summary['val_top5']:.2%}"
    assert float(told["Validation loss"].text) == pytest.approx(summary["val_loss"], abs=5e-4)
    page.one("#curves ~ details summary").send_keys("\ue007")  # return
    records = [json.loads(line) for line in (written["training"].parent / "metrics.jsonl").read_text().splitlines()]
    names = [one.text for one in page.all("#curves ~ details th[scope=col]")]
    seen = [dict(zip(names, row, strict=True)) for row in rows(page, "Every epoch")]
    for record, row in zip(records, seen, strict=True):
        for name in ("epoch", "step", "train_loss", "val_loss", "val_top1"):
            assert float(row[name]) == pytest.approx(record[name], rel=1e-3)


def test_comparison_report_tells_the_numbers_of_its_result(opened, written):
    result = beside(written["comparison"], "result.json")
    page = opened("comparison")
    scores = {row[0]: row[1:] for row in rows(page, "Scores of every arm")}
    assert list(scores) == [arm["name"] for arm in result["arms"]] == ["base", "broadcast:scale=true", "slow"]
    for arm in result["arms"]:
        each = ", ".join(f"{100 * score:.2f}%" for score in arm["scores"])
        mean, _, *rest = scores[arm["name"]]
        assert [mean, *rest] == [f"{100 * arm['mean']:.2f}%", "2", each]
    verdicts = {row[0]: row[1] for row in rows(page, "accuracy on 36 validation samples")}
    assert verdicts == {name: one["kind"] for name, one in result["verdicts"].items() if name != "base"}
    seen = {row[0]: row[2] for row in rows(page, "Difference in accuracy from base")}
    assert any(judged["difference"]["mean"] for judged in result["differences"].values())
    for name, judged in result["differences"].items():
        mean, low, _, high = seen[name].replace("\N{MINUS SIGN}", "-").split()
        wanted = [100 * judged["difference"]["mean"], max(100 * judged["low"], -100), min(100 * judged["high"], 100)]
        assert [float(mean), float(low), float(high)] == pytest.approx(wanted, abs=0.01)


def test_evaluation_page_tells_the_numbers_of_its_file(opened, written):
    found = beside(written["evaluation"], "evaluation.json")
    page = opened("evaluation")
    seen = {row[0]: row[1:] for row in rows(page, "12 samples")}
    titles = {
        "top1": "Accuracy (top 1)",
        "robust.mean_corruption_top1": "Mean corruption accuracy",
        "fgsm.4": "FGSM 4/255",
    }
    for metric, title in titles.items():
        for cell, run in zip(seen[title], found["runs"], strict=True):
            value, low, _, high = cell.split()
            one = run["metrics"][metric]
            assert [value, low, high] == [f"{one[end]:.1%}" for end in ("value", "low", "high")]
    corrupted = {row[0]: row[1] for row in rows(page, "Accuracy with its 95% interval")}
    assert corrupted["fog"].split()[0] == f"{found['runs'][0]['metrics']['corruption.fog']['value']:.1%}"
    change = next(one["value"] for one in found["differences"] if one["metric"] == "top1")
    (told,) = (row[2] for row in rows(page, "vit minus glnet") if row[0] == "Accuracy (top 1)")
    assert told.split()[0].replace("\N{MINUS SIGN}", "-") == f"{change:.1%}"


@pytest.mark.parametrize("name", ["slots", "scaling", "pictures"])
def test_explanation_page_tells_the_numbers_beside_it(opened, written, name):
    numbers = beside(written[name], "numbers.json")
    page = opened(name)
    first = numbers["samples"][0]
    seen = [(row[0], row[2]) for row in rows(page, f"What {numbers['model']} answers")]
    assert seen == [(one["class"], f"{one['share']:.1%}") for one in first["answer"]]
    against = [(row[0], row[2]) for row in rows(page, "What glnet answers")] if numbers["against"] else []
    assert against == [(one["class"], f"{one['share']:.1%}") for one in first["against"]]
    page.browser.execute_script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    layers = [one for one in first["views"]["density"]["numbers"]["layers"] if one["kind"] == "tokens"]
    assert [row[1] for row in rows(page, "Attention layer by layer")] == [one["layer"] for one in layers]
    for row, layer in zip(rows(page, "Attention layer by layer"), layers, strict=True):
        assert float(row[3]) == pytest.approx(layer["entropy"], abs=5e-4)
    files = [
        one["file"] for view in first["views"].values() for one in view.get("figures", {}).values() if "file" in one
    ]
    assert files
    assert all((written[name].parent / file).stat().st_size for file in files)
    assert len(page.all("figure.shown img")) == len(files) * len(numbers["samples"])


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (320, "dark")])
@pytest.mark.parametrize("what", ["evaluation", "explanation"])
@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_pages_of_other_tasks_fit_their_window_too(opened, of_tasks, axe, task, what, width, scheme):
    page = opened(of_tasks[f"{task}-{what}"], width=width, scheme=scheme)
    assert faults(page) == []
    assert page.faults(axe) == []


@pytest.mark.parametrize(("task", "title"), [("multilabel", "Mean average precision"), ("regress", "R squared")])
def test_evaluation_page_of_another_task_tells_the_numbers_of_its_file(opened, of_tasks, task, title):
    found = beside(of_tasks[f"{task}-evaluation"], "evaluation.json")
    page = opened(of_tasks[f"{task}-evaluation"])
    seen = {row[0]: row[1:] for row in rows(page, "10 samples")}
    name = next(name for name, spec in found["metrics"].items() if spec["words"].lower() == title.lower())
    for cell, run in zip(seen[title], found["runs"], strict=True):
        one = run["metrics"][name]
        share = found["metrics"][name]["share"]
        told = [cell.split()[part] for part in (0, 1, 3)]
        assert all(part.endswith("%") is share for part in told)
        numbers = [float(part.removesuffix("%")) * (0.01 if share else 1) for part in told]  # as many digits as fit
        assert numbers == [pytest.approx(one[end], rel=1e-3, abs=5e-5) for end in ("value", "low", "high")]


@pytest.mark.parametrize(("task", "head"), [("multilabel", "Label"), ("regress", "Column")])
def test_explanation_page_of_another_task_tells_its_answer(opened, of_tasks, task, head):
    said = beside(of_tasks[f"{task}-explanation"], "numbers.json")["samples"][0]["said"]
    page = opened(of_tasks[f"{task}-explanation"])
    seen = {row[0]: row[-1] for row in rows(page, "What one answers")}
    if task == "regress":
        assert seen == {name: f"{value:.4g}" for name, value in said["values"].items()}
    else:
        assert seen == {one["label"]: f"{one['share']:.1%}" for one in said["labels"]}
    assert page.one("th[scope=col]").text == head
