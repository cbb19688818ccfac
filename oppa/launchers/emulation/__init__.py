"""Emulate hosts and slow links on one machine: network namespaces, shaped links, and ranks of several hosts."""
