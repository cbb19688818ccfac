"""Compare all policies on one job with uneven workers: training runs, the cost of decisions, and the page."""
