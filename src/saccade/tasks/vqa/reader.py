"""Reader of visual question answering."""

from ...data.open import Data
from ...data.spec import InputSpec
from ...settings import DataConfig, ModelConfig
from ..reader import Reader
from .data import AnswerTargets, open_questions
from .hosts import QuestionHosts


class QuestionReader(Reader):
    """Reads questions."""

    reads = "question"
    read_by = ("answers",)

    def open(self, config: DataConfig) -> Data:
        """Open questions about images."""
        return open_questions(config, self.options)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store the model's configuration and tokenizer."""
        targets = data.val.targets
        assert isinstance(targets, AnswerTargets)
        QuestionHosts.describe_model(spec, model, dict(targets.how), pair=False)
        spec.mean, spec.std = [0.5] * 3, [0.5] * 3  # as in ViLT's image processor
