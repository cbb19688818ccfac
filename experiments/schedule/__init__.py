"""Compare named schedules of a pipeline with searched ones (FlexTrain, section 5)."""
