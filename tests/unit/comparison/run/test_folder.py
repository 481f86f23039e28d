import json

import pytest

from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.run.folder import Folder, config_hash, hold, is_finished, resumable
from saccade.runs.run import RunError
from saccade.settings import overlay

REQUEST = {"data": "", "settings": {"a": 1}, "arms": {"base": "base"}, "seeds": [0, 1], "budget": None}


def test_a_new_folder_knows_nothing_and_one_that_was_written_knows_all(tmp_path):
    folder = Folder(tmp_path / "c")
    assert folder.claim(REQUEST) == {}
    folder.write(REQUEST, {"fit": None})
    assert folder.claim(REQUEST)["request"] == REQUEST


def test_arms_and_seeds_may_be_added(tmp_path):
    folder = Folder(tmp_path / "c")
    folder.write(REQUEST, {})
    more = {**REQUEST, "arms": {"base": "base", "new": "broadcast"}, "seeds": [0, 1, 2]}
    assert folder.claim(more)["request"]["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": "elsewhere"}, "data = '' there, 'elsewhere' requested"),
        ({"settings": {"a": 2}}, "settings"),
        ({"arms": {"base": "lr=3"}}, "arm base is 'base' there, 'lr=3' requested"),
    ],
)
def test_another_comparison_is_refused_unless_asked_for(tmp_path, change, told):
    folder = Folder(tmp_path / "c")
    folder.write(REQUEST, {})
    with pytest.raises(RunError, match="holds another comparison") as error:
        folder.claim({**REQUEST, **change})
    assert told in str(error.value)
    assert folder.claim({**REQUEST, **change}, overwrite=True) == {}


def test_a_folder_of_other_things_and_a_damaged_record_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="not a comparison"):
        Folder(tmp_path).claim(REQUEST, overwrite=False)
    with pytest.raises(RunError, match="not a comparison"):
        Folder(tmp_path).claim(REQUEST, overwrite=True)
    with pytest.raises(RunError, match="is a file"):
        Folder(tmp_path / "thesis.txt").claim(REQUEST)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        Folder(tmp_path).claim(REQUEST)


def test_runs_are_found_by_their_settings_under_any_name(tmp_path):
    folder = Folder(tmp_path)
    config = overlay(parse_arm("broadcast").configure(None, {}), {"seed": 3})
    path = folder.run_path("broadcast", config)
    assert path == tmp_path / "runs" / f"broadcast-{config_hash(config)}" / "seed-3"
    path.mkdir(parents=True)
    assert folder.run_path("another name", config) == path
    assert folder.run_path("another name", overlay(config, {"optim.lr": 0.5})) != path


def test_a_task_tells_runs_apart_only_where_it_was_told():
    config = parse_arm("base").configure(None, {})
    named = overlay(config, {"task": "classify"})
    assert config_hash(named) != config_hash(config)


def test_one_process_at_a_time_and_a_lock_is_let_go_of(tmp_path):
    folder = Folder(tmp_path / "c")
    with folder.lock(), pytest.raises(RunError, match="another process"), folder.lock():
        pass
    with folder.lock():
        pass


def test_waiting_for_a_lock_ends(tmp_path):
    with hold(tmp_path / ".lock"), pytest.raises(RunError), hold(tmp_path / ".lock", wait=0.15):
        pass


def test_a_run_is_finished_without_its_weights_but_not_without_its_scores(tmp_path):
    assert not is_finished(tmp_path)
    (tmp_path / "scores.safetensors").write_bytes(b"")
    assert not is_finished(tmp_path)  # written before the summary
    (tmp_path / "summary.json").write_text("{}")
    assert is_finished(tmp_path)
    (tmp_path / "scores.safetensors").unlink()
    assert not is_finished(tmp_path)


def test_what_is_left_of_a_run_without_a_state_is_removed(tmp_path):
    run = tmp_path / "seed-0"
    run.mkdir()
    (run / ".config.yaml.part").write_text("seed:")
    assert resumable(run) is None
    assert not run.exists()
    (run / "state" / "step-000000001").mkdir(parents=True)
    (run / "config.yaml").write_text(json.dumps({}))
    found = resumable(run)
    assert found is not None
    assert found.path == run


def test_looks_are_counted_in_the_folder_and_the_same_seeds_are_the_same_look(tmp_path):
    folder = Folder(tmp_path)
    folder.write({"arms": {}}, {})
    assert [folder.count_look(seeds) for seeds in ((0, 1), (1, 0), (0, 1, 2), (0, 1), (0, 1, 2, 3))] == [1, 1, 2, 1, 3]
    assert folder.record()["looks"] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_look_from_before_looks_were_counted_is_counted(tmp_path):
    folder = Folder(tmp_path)
    folder.write({"arms": {}}, {})
    folder.result_file.write_text('{"reference": "base", "arms": [{"name": "base", "seeds": [0, 1]}]}')
    assert folder.count_look((0, 1, 2)) == 2
