"""Provide what training loops need to follow the plan of a run: samples by number, progress in samples, statistics, states of checkpoints.

The modules for each framework share them. They import torch, and no framework on top of it.
"""
