"""oppa finds the fastest way to run a distributed training job, verifies it by measurement, and adapts it while the job runs."""

__version__ = "0.1.0"
