"""Predict the rows of a data frame; apart from the other functions, which do not load pandas."""

import pandas as pd

from oppa.cost import prediction


def predict_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict step time and memory of rows, whose models, devices and frameworks may differ, by the prior alone.

    Args:
        rows: Columns as `oppa predict --rows` takes them; a cell is text or a number. An empty cell of an optional column is the default.

    Returns:
        The rows, in their order and with their index, and the predictions as further columns. They are missing values in a row that no
        framework can run.

    Raises:
        InputError: a required column is missing, or a cell is wrong.
    """
    return prediction.predict_rows(rows)
