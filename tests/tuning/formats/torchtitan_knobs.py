"""Provide choices for every knob of torchtitan's search space."""

EVERY_KNOB = """
cp = [1, 2]
cp_load_balancer = ["headtail", "ptrr", "None"]
dp_replicate = [1, 2, 4]
async_tp = [false, true]
sequence_parallel = [false, true]
cpu_offload = [false, true]
optimizer_implementation = ["fused", "foreach", "for-loop"]
memory_budget = [0.25, 0.5, 0.75, 1.0]
"""
