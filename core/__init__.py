"""Tensors and token ids: models, drafting, verification, sampling. No HTTP, no asyncio, no text."""
