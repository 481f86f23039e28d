"""Texts from every layout, and what is refused."""

import csv
import json

import pytest

from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples
from support.texts import sentences, write_cola, write_tsv


def opened(path, task="text", **config):
    return open_samples(task, DataConfig(path=str(path), **config))[1]


def test_cola_has_no_header_and_is_judged_by_matthews(tmp_path):
    data = opened(write_cola(tmp_path))
    assert (len(data.train), len(data.val)) == (40, 12)
    assert data.outputs == ("acceptable", "unacceptable")
    assert data.train.targets.metric == "matthews"
    assert data.train.sample(0).inputs == {"text": sentences(40)[0][0]}


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        (["index", "sentence1", "sentence2", "label"], ("a film", "the song")),  # RTE
        (["index", "question", "sentence", "label"], ("a film", "the song")),  # QNLI
        (["index", "premise", "hypothesis", "label"], ("a film", "the song")),
    ],
)
def test_pairs_of_glue_are_judged_by_accuracy(tmp_path, columns, pair):
    rows = [["0", *pair, "entailment"], ["1", *pair, "not_entailment"]]
    write_tsv(tmp_path / "train.tsv", columns, rows)
    write_tsv(tmp_path / "dev.tsv", columns, rows)
    data = opened(tmp_path)
    assert data.train.targets.metric == "accuracy"
    assert data.val.sample(1).inputs == {"text": "a film", "pair": "the song"}


def test_mnli_has_two_development_sets(tmp_path):
    columns = ["index", "sentence1", "sentence2", "label1", "gold_label"]
    rows = [["0", "a", "b", "neutral", name] for name in ("neutral", "entailment", "contradiction")]
    write_tsv(tmp_path / "train.tsv", columns, rows)
    write_tsv(tmp_path / "dev_matched.tsv", columns, rows[:1])
    write_tsv(tmp_path / "dev_mismatched.tsv", columns, rows[:2])
    data = opened(tmp_path)
    assert (data.outputs, len(data.val)) == (("contradiction", "entailment", "neutral"), 1)
    assert "validated on 'dev_matched'" in data.notes
    assert len(opened(tmp_path, "text:dev=mismatched").val) == 2
    with pytest.raises(ValueError, match="choose one with --task text:dev=NAME"):
        opened(tmp_path, "text:dev=other")


def test_quotes_in_tsv_are_letters_and_odd_line_ends_cut_no_text(tmp_path):
    text = 'the "film\x0b is \u2028 good'
    file = write_tsv(tmp_path / "one.tsv", ["sentence", "label"], [[text, "a"], ["b", "b"], ["c", "a"], ["d", "b"]])
    assert text in {one for texts in (opened(file).train.texts, opened(file).val.texts) for (one,) in texts}


def rows_of(data):
    source = data.train
    return [(*source.text(n), source.targets.describe(n)) for n in range(len(source))]


def test_csv_jsonl_and_parquet_say_the_same(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [(f'{text}, "said" she', label, "train" if n else "val") for n, (text, label) in enumerate(sentences(9))]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "mood", "split"), *rows])
    lines = [json.dumps({"review": text, "mood": mood, "split": split}) for text, mood, split in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    columns = dict(zip(("review", "mood", "split"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with (tmp_path / "b.csv").open("w", newline="", encoding="utf-8") as file:  # as where numbers have commas
        csv.writer(file, delimiter=";").writerows([("review", "mood", "split"), *rows])
    files = ("a.csv", "b.csv", "a.jsonl", "a.parquet")
    found = [opened(tmp_path / name, "text:text=review,label=mood") for name in files]
    assert all(rows_of(data) == [row[:2] for row in rows[1:]] for data in found)
    assert {data.val.fingerprint() for data in found} == {found[0].val.fingerprint()}


def test_sets_of_hugging_face_are_read_by_the_names_of_their_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    made = datasets.Dataset.from_dict({"sentence": ["a", "b", "c", "d"], "label": [0, 1, 1, 0]}, features=features)
    datasets.DatasetDict({"train": made, "validation": made}).save_to_disk(str(tmp_path / "set"))
    data = opened(tmp_path / "set")
    assert (data.outputs, rows_of(data)[1]) == (("no", "yes"), ("b", "yes"))


def test_another_text_gives_another_fingerprint(tmp_path):
    before = opened(write_cola(tmp_path)).train.fingerprint()
    file = tmp_path / "train.tsv"
    file.write_text(file.read_text().replace("film", "song", 1))
    assert opened(tmp_path).train.fingerprint() != before


def test_held_out_texts_do_not_depend_on_the_run(tmp_path):
    file = write_tsv(tmp_path / "a.tsv", ["sentence", "label"], [list(row) for row in sentences(30)])
    one, two = opened(file), opened(file)
    assert one.val.texts == two.val.texts
    assert len(one.train) + len(one.val) == 30
    shuffled = write_tsv(tmp_path / "b.tsv", ["sentence", "label"], [list(row) for row in sentences(30)[::-1]])
    assert set(opened(shuffled).val.texts) == set(one.val.texts)
    twice = write_tsv(tmp_path / "c.tsv", ["sentence", "label"], [list(row) for row in sentences(30)] * 2)
    data = opened(twice)
    assert set(data.train.texts).isdisjoint(data.val.texts)


GOOD = [["a film", "good"], ["a song", "bad"], ["the film", "good"], ["the song", "bad"]]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", "sentence\tlabel\na film\tgood\na song\t\n", r"row 2 of train has no label \(''\)"),
        ("a.tsv", "sentence\tlabel\na film\tgood\na song\t-\n", "row 2 of train has no label"),
        ("a.tsv", "sentence\tlabel\na film\tgood\n\tbad\n", "row 2 of train has an empty text"),
        ("a.tsv", "sentence\tlabel\na film\tgood\nb\tgood\n", "has 1 class"),
        ("a.tsv", "words\tlabel\na film\tgood\n", "text:text=COLUMN"),
        ("a.tsv", "sentence\tmood\na film\tgood\n", "text:label=COLUMN"),
        ("a.tsv", "sentence\tlabel\na film\tgood\tmore\n", "row 1 has 3 cells, but the first line has 2"),
        ("a.tsv", "sentence\tsentence\na film\tgood\n", "two columns named 'sentence'"),
        ("a.tsv", "", "is empty"),
        ("a.tsv", "sentence\tlabel\n", "has column names but no texts"),
        ("a.csv", 'sentence,label\n"a film,good\nb,bad\n', "not valid CSV"),
        ("a.csv", 'sentence,label\n"a" film,good\n', "not valid CSV"),
        ("a.csv", "", "is empty"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", '["a"]\n', "line 1 is not a JSON object"),
        ("a.parquet", "no parquet", "not a Parquet file"),
        ("a.xlsx", "x", "unknown file type"),
        ("a.csv", b"sentence,label\n\xff\xfe,good\n", "not UTF-8 text"),
        ("a.csv", "sentence:label\na film:good\n", "has the columns 'sentence:label'"),
        ("a.csv", "sentence,label\na film,good\na song,bad\n", "no class has two different samples"),
        ("a.csv", "sentence,label\n" + "a film,good\n" * 4 + "a song,bad\n", "no class has two different samples"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": ["c"], "label": "d"}\n', "row 2 has a list"),
        ("a.jsonl", '{"text": {}, "label": "b"}\n', "text columns are recognised by the names"),
        ("a.json", '[{"text": "a", "label": "b"}]', "one object per line"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, told):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=told):
        opened(tmp_path / name)


def test_a_column_that_is_not_there_or_is_both_is_refused(tmp_path):
    file = write_tsv(tmp_path / "a.tsv", ["sentence", "label"], GOOD)
    for task, told in (
        ("text:label=mood", "label='mood' was given"),
        ("text:text=review", "'review' was given"),
        ("text:label=sentence", "both text and class"),
    ):
        with pytest.raises(ValueError, match=told):
            opened(file, task)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_line_ends_and_a_byte_order_mark_are_no_part_of_texts_and_classes(tmp_path, kind, end):
    mark = {"csv": ",", "tsv": "\t"}[kind]
    whole = end.join(mark.join(row) for row in (["Sentence", "LABEL"], *GOOD)) + end
    (tmp_path / f"a.{kind}").write_bytes(b"\xef\xbb\xbf" + whole.encode())
    data = opened(tmp_path / f"a.{kind}", val_share=0.5)
    assert data.outputs == ("bad", "good")
    assert sorted(data.train.texts + data.val.texts) == sorted((text,) for text, _ in GOOD)


def test_what_is_quoted_in_csv_may_hold_anything(tmp_path):
    odd = 'a \t film,\n"so" \U0001f600'
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("sentence", "label"), (odd, "good"), *GOOD])
    data = opened(tmp_path / "a.csv")
    assert (odd,) in data.train.texts + data.val.texts


@pytest.mark.parametrize(("given", "classes"), [([0, 1], ("0", "1")), ([True, False], ("False", "True"))])
def test_classes_may_be_numbers(tmp_path, given, classes):
    lines = [json.dumps({"text": text, "label": given[n % 2]}) for n, (text, _) in enumerate(GOOD)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert opened(tmp_path / "a.jsonl", val_share=0.5).outputs == classes


def test_rows_that_are_not_used_are_told(tmp_path):
    rows = [[f"{text} {n}", label, part] for part in ("train", "dev", "test") for n, (text, label) in enumerate(GOOD)]
    data = opened(write_tsv(tmp_path / "a.tsv", ["sentence", "label", "split"], rows))
    assert (len(data.train), len(data.val)) == (4, 4)
    assert "not used: 4 rows of 'test'" in data.notes


def test_unknown_names_of_classes_in_validation_are_refused(tmp_path):
    write_tsv(tmp_path / "train.tsv", ["sentence", "label"], GOOD)
    write_tsv(tmp_path / "dev.tsv", ["sentence", "label"], [["a film", "splendid"]])
    with pytest.raises(ValueError, match="splendid"):
        opened(tmp_path)


def test_numbers_to_predict_are_no_classes(tmp_path):
    rows = [["a film", "the song", f"{n / 7:.3f}"] for n in range(60)]
    file = write_tsv(tmp_path / "a.tsv", ["sentence1", "sentence2", "label"], rows)
    with pytest.raises(ValueError, match="which look like regression targets"):
        opened(file)


def test_two_training_files_and_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no texts were given"):
        opened("")
    write_tsv(tmp_path / "dev.tsv", ["sentence", "label"], GOOD)
    with pytest.raises(ValueError, match="must be named train"):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none.tsv")
