"""Find trackers by name: `mlflow`, `wandb`, `tensorboard`, one of an installed package, or `module:Class`."""

import inspect
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oppa import catalog, extensions
from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.problem.training import TrackingChoice
from oppa.tracking.tracker import Tracker

GROUP = "oppa.trackers"
"""Group of the entry points by which an installed package adds trackers."""
BUILT_IN = (
    EntryPoint("mlflow", "oppa.tracking.mlflow_tracker:MlflowTracker", GROUP),
    EntryPoint("wandb", "oppa.tracking.wandb_tracker:WandbTracker", GROUP),
    EntryPoint("tensorboard", "oppa.tracking.tensorboard_tracker:TensorboardTracker", GROUP),
)
"""Each needs the package, and the extra of oppa, of its name."""


def require_trackers(choice: TrackingChoice) -> None:
    """Refuse, before a session begins, trackers that cannot be made.

    Raises:
        InputError: a name is unknown, a class is not a tracker, or it does not accept an option.
        EnvironmentLackingError: a tracker's package is not installed.
    """
    for name in choice.names:
        known = inspect.signature(_class(name)).parameters.values()
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known):
            own = [each.name for each in known if each.name not in ("experiment", "folder")]
            extensions.require_options(choice.options.get(name, {}), own, owner=f"the tracker `{name}`")


def make_tracker(name: str, choice: TrackingChoice, *, job: str) -> Tracker:
    """Return a tracker, whose library is loaded now; `job` is the name of a job, the experiment if the choice names none."""
    made: Tracker = _class(name)(choice.experiment or job, Path(choice.folder), **choice.options.get(name, {}))
    return made


def _is_installed(package: str) -> bool:
    """Return whether a package is installed; a folder of that name, such as the `wandb/` of earlier runs, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def _class(name: str) -> Any:
    if ":" in name:
        return extensions.load_class(name, kind="tracker", protocol=Tracker)
    found = {each.name: each for each in BUILT_IN}
    if name in found and not _is_installed(name):
        raise EnvironmentLackingError(f"the tracker `{name}` needs the package `{name}`", hint=catalog.install_hint(name))
    found = found if name in found else extensions.parts(GROUP, BUILT_IN)
    if name not in found:
        raise InputError(f"`{name}` is not a tracker", hint=f"{nearest(name, found)}; name your own as `module:Class`")
    return extensions.load_class(found[name].value, kind="tracker", protocol=Tracker)
