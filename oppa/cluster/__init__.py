"""Share a cluster: scale elastic jobs up into idle devices, and reclaim them (FlexTrain, section 5), on traces and on Slurm."""
