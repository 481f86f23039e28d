from saccade.comparison.conclude.diverged import find_diverged
from saccade.tasks.metric import MetricSpec

ACCURACY = MetricSpec("top1", "accuracy", share=True, chance=0.1)
LOSS = MetricSpec("loss", "loss", larger_is_better=False)


def test_a_training_that_finished_and_learned_nothing_is_found():
    scores = {0: 0.8, 1: 0.81, 2: 0.11, 3: 0.79}
    assert find_diverged(scores, {}, usual=0.8, metric=ACCURACY, samples=1000) == (2,)
    assert find_diverged(scores, {}, usual=0.12, metric=ACCURACY, samples=100) == ()  # nobody has learned
    losses = {0: [2.0, 1.0], 1: [2.0, 5.0], 2: [2.0, float("nan")], 3: [2.0]}
    assert find_diverged({}, losses, usual=None, metric=LOSS, samples=9) == (1, 2)
