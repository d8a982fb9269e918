"""`slipstream calibrate`: filling a correction memory from prompts, by plain strict speculation over them."""
