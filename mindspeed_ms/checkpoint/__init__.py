"""Checkpoints of a run: what is complete and verified, or not there. No MindSpore in here."""
