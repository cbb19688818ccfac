"""Orders: the graph of an iteration through a pipeline, its schedules, and the time and memory that an order of it takes."""
