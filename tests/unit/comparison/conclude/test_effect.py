from saccade.comparison.conclude.evidence import Evidence, find_unaffected
from saccade.comparison.plan.plan import Plan, PlannedArm

LOSSES = {1: [2.0, 1.5], 2: [2.1, 1.4]}
ANSWERS = {1: "a1", 2: "a2"}


def evidence(losses=LOSSES, answers=ANSWERS):
    records = {seed: [{"train_loss": loss} for loss in found] for seed, found in losses.items()}
    return Evidence(runs=dict.fromkeys(losses), summaries={}, records=records, samples={}, memory=None, digests=answers)


def plan(**changes):
    arms = tuple(
        PlannedArm(name, name, {setting: (None, 1)} if setting else {}, identical_to=None)
        for name, setting in {"base": None, **changes}.items()
    )
    rest = {"side_by_side": 1, "seconds": None, "estimate": "", "budget": "", "detectable": None, "detectable_how": ""}
    counts = {"samples": 9, "same_samples": True, "runs": 2 * len(arms), "finished": 0}
    return Plan(data="set", reference="base", arms=arms, seeds=(1, 2), **counts, **rest)


def found(arms, **changes):
    return [(one.arm, one.like, one.seeds, one.same) for one in find_unaffected(plan(**changes), arms)]


def test_arms_that_came_out_alike_are_found_for_the_seeds_where_they_did():
    other = evidence({1: [2.0, 1.5], 2: [2.1, 1.3]}, {1: "a1", 2: "b2"})
    arms = {"base": evidence(), "broadcast": evidence(), "warm": other}
    assert found(arms, broadcast="model.plugins", warm="optim.lr") == [
        ("broadcast", "base", (1, 2), "everything"),
        ("warm", "base", (1,), "everything"),
    ]
    note = str(find_unaffected(plan(broadcast="model.plugins", warm="optim.lr"), arms)[0].note)
    assert note == (
        "broadcast trained exactly like base for seeds 1, 2: its changes had no effect there; check that the arm "
        "changes what it is meant to change"
    )


def test_arms_that_differ_in_one_bit_are_not():
    near = {1: [2.0, 1.5 + 2**-52], 2: [2.1 + 2**-51, 1.4]}
    arms = {"base": evidence(), "near": evidence(near, {1: "b1", 2: "b2"})}
    assert found(arms, near="optim.lr") == []


def test_two_arms_alike_are_found_though_the_reference_differs():
    arms = {"base": evidence({1: [9.0, 8.0]}, {1: "x"}), "one": evidence(), "two": evidence()}
    assert found(arms, one="optim.lr", two="augment.erase") == [("two", "one", (1, 2), "everything")]


def test_training_without_the_change_is_told_though_answers_differ():
    arms = {"base": evidence(), "broadcast": evidence(answers={1: "b1", 2: "b2"})}
    assert found(arms, broadcast="model.plugins") == [("broadcast", "base", (1, 2), "training")]
    assert found({**arms, "averaged": arms["broadcast"]}, broadcast="optim.lr", averaged="keep.ema")[1:] == [
        ("averaged", "broadcast", (1, 2), "everything")
    ]


def test_averaged_weights_of_the_same_training_are_no_mistake():
    arms = {"base": evidence(), "averaged": evidence(answers={1: "b1", 2: "b2"})}
    assert found(arms, averaged="keep.ema") == []


def test_equal_losses_of_a_single_epoch_say_nothing():
    one = {1: [2.0], 2: [2.1]}
    arms = {"base": evidence(one), "slow": evidence(one, {1: "b1", 2: "b2"})}
    assert found(arms, slow="optim.lr") == []


def test_a_loss_that_does_not_reach_the_weights_is_told():
    arms = {"base": evidence(), "aside": evidence({1: [3.0, 2.5], 2: [3.1, 2.4]})}
    assert found(arms, aside="model.plugins") == [("aside", "base", (1, 2), "answers")]
