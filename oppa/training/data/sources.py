"""Select the training data of a model: that of its family, or a user's module's own."""

from oppa.errors import InputError
from oppa.training.data.batches import Batch, Corpus, Masked, Source
from oppa.training.data.images import Digits
from oppa.training.model.user_module import Parts, parts_of
from oppa.trials.trial_folder import TrialSpec


class UserData:
    """Provides the data of a user's module, which decides itself when it repeats samples."""

    size = None
    held_out = 0

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def batch(self, step: int, sequences: range) -> Batch:
        """Return these sequences of the global batch of `step`."""
        return Batch(*getattr(self._parts, "batch")(step, sequences))  # noqa: B009 - it is optional, so no protocol has it

    def samples(self, numbers: range) -> Batch:
        """Return these samples of a run; a run is one endless batch, that of step 0."""
        return self.batch(0, numbers)

    def validation(self, numbers: range) -> Batch:
        """Raise AssertionError, because no samples are held out."""
        raise AssertionError("no samples are held out")


def source_of(spec: TrialSpec, held_out: int = 0) -> Source:
    """Return the data of a trial, or of a run with `held_out` samples held out.

    It is a user's module's own data, the job's token files, images for a ViT, masked text for an encoder, or else text.

    Raises:
        InputError: if the model cannot be trained on this data, or samples cannot be held out.
        EnvironmentLackingError: if a package with the data is not installed.
    """
    model, seed = spec.model, spec.training.seed
    if model.entry_point and hasattr(parts := parts_of(model), "batch"):
        if held_out:
            hint = "leave out `validation`: the module chooses its own data"
            raise InputError(f"`validation = {held_out}`, but the user module provides its own data", hint=hint)
        if spec.training.tokens:
            raise InputError("`tokens` has no effect: the user module provides its own data", hint="leave out `tokens`")
        return UserData(parts)
    if spec.training.tokens:
        return Corpus.of_tokens(spec.training, model, held_out=held_out)
    if model.patch:
        return Digits.load(model, seed=seed, held_out=held_out)
    return (Corpus if model.causal else Masked).load(spec.training.corpus, model, seed=seed, held_out=held_out)
