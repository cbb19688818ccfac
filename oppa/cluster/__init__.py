"""Shares a cluster: who gets idle devices, and who gives them back (FlexTrain, section 5), on a trace and on a real scheduler."""
