"""What a training job and the control service say to each other."""
