"""HTTP, text and people: the OpenAI-compatible face of the engine."""
