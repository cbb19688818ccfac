"""State the values that a launch line's templates may name in one trial."""

from pathlib import Path

from oppa.problem.cluster import Cluster
from oppa.problem.command import Values
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.templates import ABOUT, BUCKET, DERIVED, TOKENS
from oppa.problem.training import Training
from oppa.units import MIB

CACHES = "caches"
"""Folder of a study with what its programs keep for later trials."""
WRITES = "writes"
"""Folder of a trial into which its program writes, in place of what its launch line names."""
SHARED = f"{CACHES}/shared"
"""Folder of a study with the files that its trials share."""


def values_of(
    configuration: Configuration, model: Model | None, cluster: Cluster, training: Training, *, steps: int, folder: Path
) -> Values:
    """Return the values that a template may name, for one trial; those of the model if there is one."""
    records = {Cluster: cluster, Model: model, Training: training}
    about = {name: getattr(records[kind], name) for kind, names in ABOUT.items() for name in names if records[kind]}
    sizes = (configuration.micro_batch, configuration.global_batch)
    tokens = dict(zip(TOKENS, (size * model.seq_len for size in sizes), strict=True)) if model else {}
    shared = folder.parent.parent / SHARED
    return {**settings_of(configuration, training), **tokens, **about, "steps": steps, "folder": str(folder), "cache_folder": str(shared)}


def settings_of(configuration: Configuration, training: Training) -> Values:
    """Return the values of the parameters, and those that follow from them."""
    given = {name: configuration[name] for name in configuration.names}
    derived = {name: getattr(configuration, name) for name in DERIVED}
    return {**given, **derived, BUCKET: round(configuration.zero_bucket_mb * MIB / training.element_bytes)}
