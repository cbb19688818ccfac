"""oppa finds the fastest way to run a distributed training job, proves it by measurement, and keeps it right while the job runs."""

__version__ = "0.1.0"
