"""Pipeline schedules order the work of one step; this package builds and searches them, and predicts their time and memory."""
