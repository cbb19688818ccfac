"""The experiment of `oppa bench transfer`: what a search gains and loses by the coefficients of other studies."""
