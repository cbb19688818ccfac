"""Compare real runs of pipelines with their predictions (FlexTrain)."""
