"""The search for an order: the least of longest spans, given what each node takes and how much each rank may hold."""
