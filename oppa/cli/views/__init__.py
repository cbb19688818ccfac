"""Draw what commands print: tables, charts and live displays, by rich."""
