"""Models as the rounds see them: weights loaded and packed, KV in blocks, one ragged forward per call."""
