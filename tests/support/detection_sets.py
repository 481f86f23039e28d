"""Helpers that several files of the tests of data use."""

from saccade.data.check import check_data
from saccade.data.framing import Framing
from saccade.data.open import open_data
from saccade.tasks.detection.data import ObjectEncoder


def opened(root, **options):
    return open_data(str(root), task="detect", **options)


def kinds(root):
    report = check_data(str(root))
    return [(finding.kind, finding.name) for finding in report.findings], report


def encode(source, index=0, side=64):
    return ObjectEncoder(Framing(side, fit=True))(source.sample(index))
