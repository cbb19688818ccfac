"""Derive DeepSpeed's JSON from a configuration, and refuse configurations that DeepSpeed cannot run.

This module does not import DeepSpeed. Its rules were found by running DeepSpeed 0.19.8: a configuration that is not refused here trains the
same model (tests/runners/test_deepspeed.py).
"""

from oppa.errors import InputError
from oppa.problem.file_keys import filled, keys_for, nested
from oppa.problem.space_file import declared_keys
from oppa.problem.trial_values import settings_of

_UNUSED = {
    "hpz": 1,
    "offload_optimizer": "none",
    "offload_params": "none",
    "quantized_weights": False,
    "quantized_gradients": False,
}
"""Parameters of search_spaces/deepspeed.toml that this runner does not set, with DeepSpeed's own values."""
_SET = ("micro_batch", "zero_stage", "zero_bucket_mb", "overlap_zero_comm", "tp")
"""Parameters whose keys of search_spaces/deepspeed.toml this runner sets; PipelineModule itself takes the others."""

# The linear layers that AutoTP splits, and how. They are listed because AutoTP's own rules match names of Hugging Face's models.
_CUTS = [
    {"patterns": [r".*\.attention\.(query|key|value)\.weight", r".*\.feed_forward\.(gate|up)\.weight"], "partition_type": "column"},
    {"patterns": [r".*\.attention\.output\.weight", r".*\.feed_forward\.down\.weight"], "partition_type": "row"},
    {"patterns": [r".*\.head\.weight"], "partition_type": "column", "gather_output": True},
]


def settings(configuration, training):
    """Return DeepSpeed's configuration. DeepSpeed computes the global batch itself, wrongly with AutoTP, but does not use it."""
    declared = declared_keys("deepspeed")
    keys = {key: to for name in _SET for key, to in keys_for(declared[name], configuration[name]).items() if to != "{global_batch}"}
    values = nested(filled(keys, settings_of(configuration, training)))
    if configuration.tp > 1:
        values["tensor_parallel"]["partition_config"] = {"use_default_specs": False, "layer_specs": _CUTS}
    return values | {
        "bf16": {"enabled": training.precision == "bf16"},
        "gradient_clipping": training.gradient_clipping,  # its default is 1
        # torch's own AdamW is used, as under every other runner; DeepSpeed's would be compiled when the trial starts.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }


def require_runnable(configuration, layers, clipping=0.0, precision="fp32"):
    """Raise InputError, with the rule that is broken, for a configuration that DeepSpeed or this runner cannot run."""
    pp, replicas = configuration.pp, configuration.dp * configuration.micro_batch
    rules = {
        "dp * micro_batch must divide global_batch": configuration.global_batch % replicas == 0,
        f"pp must be at most the number of layers, {layers}": pp <= layers,
        "tp or pp must be 1, because AutoTP does not work inside a PipelineModule": pp == 1 or configuration.tp == 1,
        "zero_stage must be 0 or 1, because PipelineModule refuses ZeRO 2 and 3": pp == 1 or configuration.zero_stage <= 1,
        "schedule must be 1f1b, the only one of PipelineModule": pp == 1 or configuration.schedule == "1f1b",
        "model_chunks must be 1, because a rank has one stage": configuration.model_chunks == 1,
        "ep must be 1, because experts are not distributed": configuration.ep == 1,
        "the degrees of this runner are dp, tp and pp": configuration.devices == configuration.dp * configuration.tp * pp,
        **{
            f"{name} must be {str(value).lower()}, because this runner does not set it": configuration.get(name, value) == value
            for name, value in _UNUSED.items()
        },
        "recompute must be none or full": configuration.recompute in ("none", "full"),
        "gradient_clipping must be 0, because PipelineModule clips by the norm of its first stage alone": pp == 1 or not clipping,
        "zero_stage must be at least 1 if AutoTP clips gradients in bf16, because ZeRO 0 then computes a wrong norm": (
            configuration.tp == 1 or configuration.zero_stage > 0 or not clipping or precision == "fp32"
        ),
    }
    for rule, holds in rules.items():
        if not holds:
            raise InputError(f"DeepSpeed cannot run `{configuration.id}`: {rule}")
