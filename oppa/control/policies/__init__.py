"""Choose the configuration of a job at each decision: one module per policy, all behind `oppa.control.decision.Policy`."""
