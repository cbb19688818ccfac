"""Use the nodes of a Ray cluster as hosts. Only the programs in this package import Ray, each in a process of its own."""
