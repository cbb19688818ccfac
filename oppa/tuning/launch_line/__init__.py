"""Understand what a launch line means: framework, model, batch and present configuration, and the job that it amounts to."""
