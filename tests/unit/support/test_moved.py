"""Old modules find their names in the new places, and warn; what they never had they do not have."""

import warnings
from importlib import import_module

import pytest

import saccade.comparison
from saccade.support.moved import PLACES

OLD = {
    "saccade.comparison.paired": "from_differences macro_difference macro_values paired_difference paired_scores "
    "pseudo_values Ratio ratio_interval read_scores read_series right_or_wrong Seeds statistic_difference summarize "
    "Terms unpaired_difference",
    "saccade.comparison.difference": "check_level decide Difference FIRST_LOOK judge Judgement Kind MANY_SEEDS MATTERS "
    "MOST_SEEDS out_of_reach plan_detectable same_everywhere_hides spent Verdict",
    "saccade.comparison.spread": "fixed_spread joined_freedom mean_squares MeanSquares NODES paired_spread SMALLEST_P "
    "Spread unpaired_spread",
    "saccade.comparison.exact": "DRAWN ENUMERATED holm holm_levels mcnemar sign_flip",
    "saccade.comparison.folded": "folded_spread Folds SHARED",
    "saccade.comparison.stability": "find_diverged LEARNED Stability weigh",
    "saccade.tasks.page": "Page",
    "saccade.evaluation.bootstrap": "average BLOCK Difference estimate Estimate fewer FEWEST group_mean interval LEVEL "
    "mcnemar mean_of one_hot over_all RECORDS resample resample_means Resampled RESAMPLES Statistic statistic_of",
}


@pytest.mark.parametrize(("old", "name"), [(old, name) for old, names in OLD.items() for name in names.split()])
def test_an_old_name_is_the_new_one_and_warns_of_its_place(old, name):
    with pytest.warns(DeprecationWarning, match=rf"^{old}\.{name} is now saccade\.\S+;") as caught:
        found = getattr(import_module(old), name)
    assert caught[0].filename == __file__  # that of who asked
    home, _, own = str(caught[0].message).split(" is now ")[1].split(";")[0].rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the new place is no old one
        assert found is getattr(import_module(home), own)


MOVED = {old: homes[0] for old, homes in PLACES.items() if old not in OLD}


@pytest.mark.parametrize("old", MOVED)
def test_every_function_and_class_of_a_moved_module_is_found_by_its_old_path(old):
    new = import_module(MOVED[old])
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    assert names
    for name in names:
        with pytest.warns(DeprecationWarning, match=rf"^{old}\.{name} is now {MOVED[old]}\.{name};"):
            assert getattr(import_module(old), name) is getattr(new, name)


@pytest.mark.parametrize("old", PLACES)
def test_an_old_module_has_nothing_else_and_is_imported_without_a_warning(old):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = import_module(old)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing


def test_what_is_promised_is_in_its_place_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert saccade.comparison.paired_difference is saccade.statistics.paired_difference
        assert set(saccade.comparison.__all__) <= set(saccade.statistics.__all__)
