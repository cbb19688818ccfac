"""Compare a search in two sizes with a plain search at full size."""
