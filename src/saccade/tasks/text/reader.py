"""Reader of text datasets."""

from ...data.open import Data
from ...data.spec import InputSpec
from ...data.table import Table
from ...data.targets import Targets
from ...settings import ConfigError, DataConfig, ModelConfig
from ..reader import Reader
from .data import TextSource, TextTargets
from .hosts import TextHosts
from .reading import open_texts

METRICS = ("accuracy", "matthews")


class TextReader(Reader):
    """Reads texts."""

    reads = "text"  # lists are not claimed; text requires --task text
    read_by = ("text", "pair", "label", "dev")

    def read_table(self, table: Table) -> Targets:
        """Refuse lists of images."""
        raise table.refuse(
            "the layout of the task text, which is not a list of images; `saccade train` checks texts itself"
        )

    def open(self, config: DataConfig) -> Data:
        """Open texts and classes."""
        return open_texts(config, self.options)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store the primary metric, the text columns, and the model's configuration and tokenizer."""
        assert isinstance(data.train, TextSource)
        targets = data.train.targets
        assert isinstance(targets, TextTargets)
        columns, most = list(targets.how["columns"]), targets.how["max_length"]
        spec.extra |= {"metric": targets.metric, "columns": columns}
        limit = TextHosts.describe_model(spec, model, targets.how, pair=len(columns) == 2)
        if most and most > limit:
            raise ConfigError(f"max_length = {most} was given; {model.name} takes texts of at most {limit} tokens")

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse an invalid spec."""
        if spec.extra.get("metric") not in METRICS:
            raise ValueError(f"the metric in its spec is not one of {', '.join(METRICS)}")
        columns = spec.extra.get("columns")
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ValueError("its spec does not name the text columns")
