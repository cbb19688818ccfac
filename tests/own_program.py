"""A job with a launch line of its own, and its program, which prints a step every 10 ms."""

JOB = """
[model]
preset = "tiny-1m"
[batch]
global_batch = 8
[cluster]
devices_per_host = 1
memory_limit = "1 GiB"
[command.steps]
pattern = "step took (?P<ms>[0-9.]+) ms, loss (?P<loss>[0-9.]+)"
[space.parameters]
micro_batch = [1, 2, 4]
[limits]
trials = 3
q_min = 2
q_max = 4
"""
PROGRAM = """
import sys, time
for step in range(int(sys.argv[2])):
    time.sleep(0.01)
    print(f"step took {40 / int(sys.argv[1])} ms, loss {3 / (step + 1)}", flush=True)
"""
