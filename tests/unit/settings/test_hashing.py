"""Hashes of settings stay the same when a setting is added."""

from saccade.comparison.run.folder import config_hash
from saccade.settings import TrainConfig, flatten, overlay
from saccade.settings.hashing import OF_COMPARISONS, OF_TRIALS
from saccade.tuning.store import key_of

KNOWN = (
    "schema.py was added to: OF_COMPARISONS and OF_TRIALS list the settings of the first versions and stay as they "
    "are; a new setting is hashed where it differs from its default"
)


def test_settings_that_are_added_change_no_hash_at_their_defaults():
    assert (config_hash(TrainConfig()), key_of(TrainConfig())) == ("4aecb0ea3d", "c3d10a33565f"), KNOWN


def test_a_later_setting_is_hashed_where_it_is_set():
    later = overlay(TrainConfig(), {"schedule.warmup_share": 0.1})
    assert key_of(later) != key_of(TrainConfig())
    assert config_hash(later) != config_hash(TrainConfig())


def test_a_setting_of_the_first_versions_is_never_removed_or_renamed():
    gone = OF_TRIALS - flatten(TrainConfig()).keys()
    assert not gone, f"without {', '.join(gone)} no earlier comparison or search is found; keep the names"
    assert OF_COMPARISONS < OF_TRIALS
