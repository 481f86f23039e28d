"""Classes in a column of a list."""

from ...data.table import LABELS, Table, read_classes
from ...data.targets import Targets
from ..reader import Reader


class ClassReader(Reader):
    """Reads one class a sample."""

    rank = 10

    def claims(self, table: Table) -> bool:
        """Tell whether there is a column of labels."""
        return table.find(LABELS) is not None

    def read_table(self, table: Table) -> Targets:
        """Return the classes of a column of labels."""
        return read_classes(table)
