"""Helpers that several files of the tests of data use."""

from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples


def opened(root, task="segment"):
    return open_samples(task, DataConfig(path=str(root)))[1]


def mask_of(source, index=0):
    return source.targets.read(index)["mask"]
