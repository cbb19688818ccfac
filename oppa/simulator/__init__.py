"""Imitates: trials that are answered in process, on a clock of our own; from recorded measurements or from first principles."""
