"""Decide which disagreements of a draft block are acceptable: pure functions of its evidence."""
