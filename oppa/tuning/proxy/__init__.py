"""Search at a smaller size first: fewer hosts and layers stand for the job, and only the best configurations run at full size."""
