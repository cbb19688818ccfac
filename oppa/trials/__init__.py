"""One configuration, run somewhere until it ends or is ended."""
