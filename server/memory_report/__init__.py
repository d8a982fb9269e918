"""Correction memories for people: what kinds of pairs they hold, and how few of them cover how much."""
