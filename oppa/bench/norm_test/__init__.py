"""The norm test against constant batches and warm-up by stages, as Lau et al. have it (section 5), at a size that one machine trains."""
