"""Measure the winner and the reference of a finished study again, as after an upgrade, and compare them with the study.

A verification is a study of its own in the folder `verifications/NNN` of the study that it verifies. It has its own trials, sessions,
software and budget, so the study itself goes on unchanged.
"""
