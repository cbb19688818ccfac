"""Read nanotron's published runs as rows for `predict_rows`. They are in a local folder, and none of them is part of this project.

files       the files of all published measurements, and where they are
columns     what the columns of a row mean
nanotron    the reader: its docstring states what is assumed about the runs, and why

The readers of the other sources are experiments (`experiments.published`).
"""
