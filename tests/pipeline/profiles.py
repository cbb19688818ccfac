"""A profile of a pipeline whose layers are alike."""

from oppa.pipeline.profile import Part, PipelineProfile

LAYER = Part(forward_s=1.0, backward_s=2.0, held_bytes=10.0, weight_bytes=4, optimizer_bytes=8)


def profile(layers: int = 8, **values: object) -> PipelineProfile:
    parts = (Part(weight_bytes=6, optimizer_bytes=12), *[LAYER] * layers, Part(weight_bytes=6, optimizer_bytes=12))
    return PipelineProfile(
        **{"parts": parts, "micro_batch": 1, "pp": 2, "dp": 1, "zero_stage": 0, "step_s": 0.0, "passes_s": 0.0, **values}
    )  # type: ignore[arg-type]
