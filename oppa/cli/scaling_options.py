"""Define the options of a scaling controller, which are the same on a trace and on a real cluster."""

from typing import Annotated

import typer

THRESHOLD = "The probability that growing must pay with (FlexTrain's P_th)."
WINDOW = "Arrivals of the last so many hours tell how often jobs come."
MAX_SCALE = "A job grows to at most so many times what it asks for."
GROWTH_ORDER = "Who grows first: `smallest`, `largest` or `oldest`."

Threshold = Annotated[float, typer.Option(help=THRESHOLD)]
WindowHours = Annotated[float, typer.Option(help=WINDOW)]
MaxScale = Annotated[float, typer.Option(help=MAX_SCALE)]
GrowthOrder = Annotated[str, typer.Option(metavar="NAME", help=GROWTH_ORDER)]
