"""Decides who runs in the next round; asyncio, never logits."""
