"""Import matplotlib for the modules that draw. It is optional: without it, a command that draws a figure is refused."""

from oppa import catalog
from oppa.errors import EnvironmentLackingError

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator
except ModuleNotFoundError as error:
    message = f"figures need the package `{error.name}`, which is not installed"
    raise EnvironmentLackingError(message, hint=f"install the extra `plots`: {catalog.install_hint('plots')}") from error

__all__ = [
    "Axes",
    "Figure",
    "FixedLocator",
    "FuncFormatter",
    "Line2D",
    "Locator",
    "LogLocator",
    "MaxNLocator",
    "NullLocator",
    "Patch",
    "mpl",
]
