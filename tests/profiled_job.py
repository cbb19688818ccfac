"""State a small simulated job whose profile takes seconds."""

JOB = """
[model]
preset = "bert-base"

[batch]
global_batch = 64

[cluster]
devices_per_host = 8
device = "A5000"
memory_limit = "{limit}"

[runner]
name = "simulated"

[space.parameters]
micro_batch = [8, 16, 32]
tp = [1, 2]
pp = 1
zero_stage = [0, 1]
dp_bucket_mb = 25
zero_bucket_mb = 24
overlap_zero_comm = true
overlap_zero_allgather = false
recompute = "none"

[training]
precision = "bf16"

[limits]
trials = 1
trial_time = "10 min"
q_max = 10
"""
