"""Surrogates: what is believed of candidates that were not tried, given those that were."""
