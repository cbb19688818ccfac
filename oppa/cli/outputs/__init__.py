"""Describe what commands print under `--json`, as types from which their JSON schemas are made."""
