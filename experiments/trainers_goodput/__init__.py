"""Measure the time to a loss of Transformers' `Trainer` under each policy: COPUS's table 1 on a trainer that is not oppa's own."""
