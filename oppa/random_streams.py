"""Provide named streams of random numbers, one per purpose, so that adding one never shifts another."""

import zlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random stream of a purpose, which is independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))
