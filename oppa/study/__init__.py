"""Store a problem and its trials in one folder. Each result is on disk before the study acknowledges it."""

from oppa.study.folder import Study
from oppa.study.records import Lease, Prediction, Trial

__all__ = ["Lease", "Prediction", "Study", "Trial"]
