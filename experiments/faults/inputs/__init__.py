"""Hostile inputs of each reader: a module yields them from a seed, and reads one.

A reader accepts an input, or raises an OppaError with a hint.
"""
