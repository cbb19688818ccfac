"""Generate records and pages of measurements, with everything needed to check them."""
