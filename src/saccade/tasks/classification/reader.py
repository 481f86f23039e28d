"""Reader of class labels in lists."""

from ...data.table import LABELS, Table, read_classes
from ...data.targets import Targets
from ..reader import Reader


class ClassReader(Reader):
    """Reads single labels."""

    rank = 10

    def claims(self, table: Table) -> bool:
        """Whether there is a column of labels."""
        return table.find(LABELS) is not None

    def read_table(self, table: Table) -> Targets:
        """Return class targets of a column of labels."""
        return read_classes(table)
