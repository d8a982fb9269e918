"""The shadow audit: what the target itself would have said where loosened answers departed from it."""
