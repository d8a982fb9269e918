"""The page at /: playground, side by side, live figures."""
