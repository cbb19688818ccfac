"""Hold what a trace of a real module found: its parameters, activations and operations, in place of those that follow from dimensions."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrace:
    """Holds the counts of a module's parts. If its layers differ, those of an average layer."""

    subject: str
    """The module, as messages name it."""
    layer_parameters: float
    embedding_parameters: float
    """Parameters outside the layers and the output projection."""
    head_parameters: float
    """Parameters after the layers, counted also if they are tied to the embedding."""
    tied: bool
    activation_bytes: float
    """Bytes that the backward pass of a layer keeps of each token."""
    head_activation_bytes: float
    """Bytes that the backward pass of the output projection and the loss keeps of each token."""
    layer_flops: float
    """Operations of a layer's matrix products on each token, 2 per multiply-add, without `attention_flops`."""
    attention_flops: float
    """Operations of a layer on each token that are proportional to the length of the sequence, at the job's length."""

    def parameter_count(self, layers: int) -> int:
        """Return the parameters of the whole model."""
        return round(layers * self.layer_parameters + self.embedding_parameters + (0 if self.tied else self.head_parameters))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the trace that `to_dict` wrote; raises ValueError for a count that is negative or no finite number."""
        for field in dataclasses.fields(cls):
            value = values[field.name]
            if field.type is float and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ValueError(f"`{field.name} = {value}` is no count")
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
