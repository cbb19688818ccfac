"""Elastic jobs on a real cluster: kept in a spool, trained by `oppa train`, grown and shrunk by the scaling controller."""
