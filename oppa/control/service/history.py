"""Keep the curves of a job that the live page draws, at a bounded size."""

from collections.abc import Mapping
from typing import Any

from oppa.control.controller import Controller
from oppa.protocol.messages import StepTaken

POINTS = 2000
"""Maximum number of points of a curve; when it has more, every second one is dropped."""

BEGINNING = (1, 0)
"""Mark of a curve without points."""


class History:
    """Keeps the points of a curve. Above POINTS of them, every second one is dropped; the last point always stays."""

    def __init__(self) -> None:
        self._stride, self._count = 1, 0
        self._points: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        """The last point, unless it is among `_points`."""

    def add(self, point: dict[str, Any]) -> None:
        """Append a point."""
        if self._count % self._stride == 0:
            self._points.append(point)
        self._count += 1
        if len(self._points) > POINTS:
            self._points, self._stride = self._points[::2], self._stride * 2
        self._last = None if self._points[-1] is point else point

    @property
    def points(self) -> list[dict[str, Any]]:
        """Return the points in order."""
        return self._points if self._last is None else [*self._points, self._last]

    @property
    def mark(self) -> tuple[int, int]:
        """Return what `since` needs to return later points alone."""
        return self._stride, len(self._points)

    def since(self, mark: tuple[int, int]) -> tuple[int, list[dict[str, Any]]]:
        """Return how many points are as they were at a mark, and those after them; all points if they were thinned since then."""
        stride, count = mark
        first = count if stride == self._stride else 0
        return first, self.points[first:]

    def snapshot(self) -> dict[str, Any]:
        """Return the curves as a JSON-serialisable dict; the points are rows without their names."""
        names = list(self._points[0]) if self._points else []
        rows = [[point[name] for name in names] for point in self._points]
        return {"stride": self._stride, "count": self._count, "names": names, "rows": rows, "last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from curves that `snapshot` returned."""
        self._stride, self._count, self._last = state["stride"], state["count"], state["last"]
        self._points = [dict(zip(state["names"], row, strict=True)) for row in state["rows"]]


def point_of(message: StepTaken, controller: Controller) -> dict[str, Any]:
    """Return the point of a step, which the controller has recorded."""
    present = controller.present
    return {
        "step": message.step,
        "samples": message.samples,
        "elapsed_s": message.elapsed_s,
        "configuration": message.configuration.id,
        "global_batch": message.configuration.global_batch,
        "loss": message.loss,
        "noise_scale": message.reliable_noise_scale,
        "goodput": present and present.goodput,
        "samples_per_s": message.configuration.global_batch / message.step_time_s,
        "efficiency": present and present.efficiency,
    }
