"""Lay a model out over ranks: the mesh, data, tensor and pipeline parallelism, and the layouts that are supported."""
