"""Speed and recovery, measured as ratios side by side in one run."""
