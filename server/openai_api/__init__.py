"""OpenAI's dialect: chat completions, completions, models."""
