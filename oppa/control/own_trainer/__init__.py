"""Supervise a user's own trainer: its attempts, the changes of its batch and of its layout, and what it reports."""
