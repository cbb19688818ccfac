"""The source of a model's training data."""

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.training.data.batches import Source
from oppa.training.data.sources import source_of
from oppa.trials.trial_folder import TrialSpec


def spec_of(model: Model, *, seed: int = 0) -> TrialSpec:
    configuration, cluster = Configuration(dp=1, global_batch=8, micro_batch=8), Cluster(devices_per_host=1, memory_limit_bytes=1)
    training = Training(seed=seed)
    return TrialSpec(study="tests", trial=1, configuration=configuration, stated_model=model, cluster=cluster, training=training, steps=1)


def source(model: Model, *, seed: int = 0) -> Source:
    return source_of(spec_of(model, seed=seed))
