"""Stores a problem and its trials in one folder. Nothing that was acknowledged is ever lost."""

from oppa.study.folder import Study
from oppa.study.records import Lease, Prediction, Trial

__all__ = ["Lease", "Prediction", "Study", "Trial"]
