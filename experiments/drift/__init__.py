"""A search on a machine whose speed drifts."""
