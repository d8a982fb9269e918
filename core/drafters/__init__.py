"""Propose tokens for the target to check: by a draft model, by lookup in the text so far, or both."""
