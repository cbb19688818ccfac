"""Random numbers by purpose: streams are named, so that adding one never shifts another."""

import zlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """An independent stream per purpose."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))
