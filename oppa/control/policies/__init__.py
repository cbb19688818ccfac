"""Choose the configuration of a job at each decision: one module per policy; all implement `oppa.control.decision.Policy`."""
