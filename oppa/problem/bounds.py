"""List the bounds of what users may state: far beyond any job, and small enough that no value exhausts time or memory.

docs/reference/bounds.md lists them for users.
"""

LARGEST = 2**31 - 1
"""Largest count: dimensions of a model, sequences, trials."""
MOST_SAMPLES = 2**53
"""Most samples of a training run, as of the protocol's messages; 15 T tokens in sequences of 4,096 are 3.7e9 samples."""
MOST_LAYERS, MOST_HOSTS, MOST_DEVICES_PER_HOST = 1_024, 65_536, 1_024
MOST_DEVICES = 65_536
"""Most devices of a scale table."""
LARGEST_STORED = 2**53
"""Bound of a number in a stored configuration, below which floats hold every whole number."""
LARGEST_BATCH = 2**24
"""Most sequences of an optimizer step."""
MOST_STEPS = 1_000_000
"""Most optimizer steps of a trial."""
MOST_REPEATS = 1_000
LARGEST_SEED = 2**63 - 1
LONGEST_S = 366 * 86_400
"""Longest duration, in seconds."""
MOST_GPU_HOURS = 1e9
"""Most GPU-hours of a study, and the highest price of one."""
LONGEST_CURRENCY = 10
"""Most characters of a currency."""
MOST_MEMORY_BYTES, FASTEST_BYTES_PER_S = 2**60, 10**18

LONGEST_NAME, LONGEST_PART = 1_000, 255
"""Most bytes of a name or a path, and of the part of a path between two slashes."""
LONGEST_TEXT = 10_000
"""Most characters of a parameter's value."""
LONGEST_EXPRESSION = 300
"""Most characters of an expression of a search space."""
MOST_CONSTRAINTS = 100
"""Most constraints of a search space."""
MOST_PARAMETERS = 256
"""Most parameters of a search space, those of the job included."""
MOST_CHOICES = 4_096
"""Most values of one parameter."""
LARGEST_DIVIDED = 10**12
"""Largest number whose divisors are the values of a parameter."""
MOST_CANDIDATES = 5_000_000
"""Most configurations of a search space, partial ones included."""

MOST_BYTES = 256 << 10
"""Largest size of a file. Job files, search spaces and files of frameworks have a few thousand bytes."""
DEEPEST, DEEPEST_SOURCE = 64, 100
"""Largest depth of tables and lists inside each other, and of the syntax tree of a Python source."""
MOST_VALUES = 100_000
"""Most values in a file."""
MOST_EXPANDED = 256 << 10
"""Most characters of a shell script with its variables filled in."""
INTEGERS = range(-(2**63), 2**63)
"""Whole numbers of TOML, of SQLite and of numpy's columns."""
