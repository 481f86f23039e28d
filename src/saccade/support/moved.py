"""Modules that have moved: old paths work for one version; every name asked of one warns and says its new place."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# An old module and where its names are now, looked up in this order; all in saccade.
MODULES = """
    aliases: settings.aliases
    averaging: building.averaging
    building: building.build
    carrying: building.transfer
    config: settings.schema settings.values settings.changes settings.text
    durations: support.durations
    earlier: runs.earlier
    files: support.files
    freezing: building.freezing
    importing: support.importing
    labelling: training.labelling
    loading: building.loading
    metadata: runs.metadata models._constructors
    moved: support.moved
    pretrained: building.pretrained
    published: building.published
    ranges: settings.values settings.schema
    registry: settings.registry settings.named
    runs: runs.run
    scores: runs.scores
    sizes: settings.model_sizes
    spawning: support.spawning
    starting: building.checkpoint building.classes
    state: runs.state
    weights: runs.weights
    wording: support.wording
    yaml_text: settings.text
    comparison.arms: comparison.plan.arms
    comparison.budget: comparison.plan.budget
    comparison.clock: comparison.run.scheduler
    comparison.common: comparison.plan.common
    comparison.conclude: comparison.conclude.conclusion
    comparison.cut: comparison.plan.folds
    comparison.difference: statistics.difference statistics.multiplicity statistics.planning statistics.inputs
    comparison.diverged: comparison.conclude.diverged
    comparison.evidence: comparison.conclude.evidence
    comparison.exact: statistics.exact statistics.multiplicity
    comparison.findings: comparison.conclude.findings
    comparison.folded: statistics.folds
    comparison.folder: comparison.run.folder
    comparison.measure: comparison.conclude.measure
    comparison.paired: statistics.paired statistics.macro statistics.jackknife statistics.ratio statistics.inputs
    comparison.plan: comparison.plan.plan
    comparison.planning: comparison.plan.planning
    comparison.processes: comparison.run.processes
    comparison.ready: comparison.plan.ready
    comparison.report: comparison.page.report
    comparison.request: comparison.plan.request
    comparison.result: comparison.page.result
    comparison.schedule: comparison.run.schedule
    comparison.snapshot: comparison.plan.snapshot
    comparison.soundness: comparison.conclude.soundness
    comparison.spread: statistics.spread
    comparison.stability: statistics.stability comparison.conclude.diverged
    comparison.tables: comparison.page.tables
    comparison.timing: comparison.plan.timing
    comparison.tuned: comparison.plan.tuned
    comparison.words: comparison.page.words
    comparison.worker: comparison.run.worker
    evaluation.bootstrap: statistics.bootstrap evaluation.judge
    comparison.plan.cut: comparison.plan.folds
    comparison.run.clock: comparison.run.scheduler
    data.kept: data.cache
    evaluation.asking: evaluation.inference
    settings.asking: settings.request_rules
    tasks.vqa.asked: tasks.vqa.questions
    tasks.hosts: tasks.huggingface
    tasks.page: tasks.presenter
    tasks.text.hosted: tasks.text.hosts
    tasks.regression.data: tasks.regression.reader
    tasks.regression.metrics: tasks.numbers
    tasks.classification.page: tasks.classification.presenter
    tasks.detection.page: tasks.detection.presenter
    tasks.multilabel.page: tasks.multilabel.presenter
    tasks.regression.page: tasks.regression.presenter
    tasks.segmentation.page: tasks.segmentation.presenter
    tasks.text.page: tasks.text.presenter
"""
PLACES = {
    f"saccade.{old}": tuple(f"saccade.{home}" for home in homes.split())
    for old, _, homes in (line.strip().partition(": ") for line in MODULES.strip().splitlines())
}
RENAMED = {
    "saccade.starting.Known": "saccade.settings.facts.Weights",
    "saccade.comparison.difference.spent": "saccade.statistics.multiplicity.alpha_share",
    "saccade.evaluation.bootstrap.Difference": "saccade.statistics.bootstrap.ResampledDifference",
    "saccade.tasks.page.Page": "saccade.tasks.presenter.Presenter",
    "saccade.evaluation.bootstrap.mcnemar": "saccade.statistics.exact.mcnemar_counts",
    "saccade.comparison.cut.Cut": "saccade.comparison.plan.folds.FoldAssignment",
    "saccade.comparison.cut.Piece": "saccade.comparison.plan.folds.FoldRun",
    "saccade.comparison.cut.pieces": "saccade.comparison.plan.folds.fold_runs",
    "saccade.comparison.request.Question": "saccade.comparison.plan.request.ComparisonSpec",
    "saccade.comparison.request.ask": "saccade.comparison.plan.request.resolve_metric",
    "saccade.comparison.budget.Ask": "saccade.comparison.plan.budget.BudgetRequest",
    "saccade.comparison.budget.Fit": "saccade.comparison.plan.budget.BudgetFit",
    "saccade.evaluation.bootstrap.FEWEST": "saccade.statistics.bootstrap.MIN_RESAMPLES",
    "saccade.tasks.vqa.asked.Asked": "saccade.tasks.vqa.questions.QuestionTable",
}


def find_moved(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of an old module, which finds its names in their new places and warns.

    Args:
        module: the old module's full name; a package of that name may stand there now.
    """

    def find(name: str) -> Any:
        old = f"{module}.{name}"
        homes = () if name.startswith("__") else PLACES[module]
        for place in [RENAMED[old]] if old in RENAMED else [f"{home}.{name}" for home in homes]:
            home, _, own = place.rpartition(".")
            found = getattr(import_module(home), own, None)
            if found is not None and not isinstance(found, ModuleType):
                text = f"{old} is now {place}; the old name only works in this version"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                return found
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


class OldModules(MetaPathFinder, Loader):
    """Makes modules at their old paths when they are imported."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for a module that has moved."""
        return ModuleSpec(name, self) if name in PLACES else None

    def exec_module(self, module: ModuleType) -> None:
        """Let the module find its names where they are now."""
        vars(module)["__getattr__"] = find_moved(module.__name__)


def install() -> None:
    """Let old paths be imported, where nothing else is found at them."""
    if not any(type(finder).__name__ == OldModules.__name__ for finder in sys.meta_path):
        sys.meta_path.append(OldModules())
