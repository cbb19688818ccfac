"""All policies on one job whose workers differ: what is trained, what it costs to decide, and the page."""
