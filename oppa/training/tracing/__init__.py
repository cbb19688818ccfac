"""Trace a real module on fake tensors: its parameters, kept activations and operations, without weights and without a device."""
