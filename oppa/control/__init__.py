"""What a job should do next, decided while it trains: policies that choose batch sizes and layout, and what follows from their choices."""
