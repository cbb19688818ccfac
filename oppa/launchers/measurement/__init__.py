"""Measure the devices and links that oppa is started on, and write their figures as a hardware file."""
