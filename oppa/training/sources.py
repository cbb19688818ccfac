"""Which data a model is trained on: what its family needs, or what a module brings along."""

from oppa.errors import InputError
from oppa.training.batches import Batch, Corpus, Masked, Source
from oppa.training.images import Digits
from oppa.training.parts import Parts, parts_of
from oppa.trials.wire import TrialSpec


class OwnData:
    """The data that a module brings along, which decides for itself when to repeat any."""

    size = None
    held_out = 0

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def batch(self, step: int, sequences: range) -> Batch:
        """The sequences of these numbers in the global batch of `step`."""
        return Batch(*getattr(self._parts, "batch")(step, sequences))  # noqa: B009 - it is optional, so no protocol has it

    def samples(self, numbers: range) -> Batch:
        """The samples of these numbers of a run: of one batch that never ends."""
        return self.batch(0, numbers)

    def validation(self, numbers: range) -> Batch:
        """There are none."""
        raise AssertionError("nothing is held out")


def source_of(spec: TrialSpec, held_out: int = 0) -> Source:
    """The data of a trial, or of a run that never sees `held_out` samples: a module's own, images for a ViT, masked text for an encoder,
    else text.

    Raises:
        InputError: if the model cannot be trained on it.
        EnvironmentLackingError: if the package lacks that has it.
    """
    model, seed = spec.model, spec.training.seed
    if model.entry_point and hasattr(parts := parts_of(model), "batch"):
        if held_out:
            hint = "leave `validation` out: such a module decides for itself what it is trained on"
            raise InputError(f"`validation = {held_out}`, but the module brings its own data along", hint=hint)
        return OwnData(parts)
    if model.patch:
        return Digits.load(model, seed=seed, held_out=held_out)
    return (Corpus if model.causal else Masked).load(spec.training.corpus, model, seed=seed, held_out=held_out)
