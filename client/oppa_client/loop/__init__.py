"""Pieces of training loops that follow the plan of a run: samples by number, progress in samples, statistics, and what checkpoints state.

The modules for each framework share them. They import torch, and no framework on top of it.
"""
