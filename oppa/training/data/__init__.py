"""Provide a run's samples: embedded corpora, images, and the data of a user's module."""
