"""Define the messages between a training job and the control service."""
