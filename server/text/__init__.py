"""Between text and token ids: chat templates, token bytes, incremental decoding, stop strings."""
