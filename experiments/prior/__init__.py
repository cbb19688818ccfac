"""Compare the cost model with published measurements, and calibrate its coefficients (OPPA)."""
