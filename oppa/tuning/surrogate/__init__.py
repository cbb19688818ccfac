"""Surrogates predict the candidates that were not tried from those that were."""
