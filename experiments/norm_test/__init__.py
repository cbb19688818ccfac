"""Compare the norm test with constant batches and stagewise warm-up (Lau et al., section 5), at a size that one machine can train."""
