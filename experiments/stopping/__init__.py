"""Compare rules that end a trial early (OPPA, section 4)."""
