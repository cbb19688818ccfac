"""Simulate elastic jobs on a shared cluster (FlexTrain, section 6)."""
