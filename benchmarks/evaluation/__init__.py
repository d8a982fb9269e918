"""`slipstream evaluate`: what a verifier gains and what it costs in accuracy, on scored tasks against `off`."""
