"""Shows what was measured: generated records with everything that is needed to check them."""
