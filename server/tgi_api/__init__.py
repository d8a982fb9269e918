"""TGI's dialect: /generate, /generate_stream, /info, /chat_tokenize."""
