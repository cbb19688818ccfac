"""The papers' experiments: each folder runs one, analyses its record, and writes its page. They need a checkout."""
