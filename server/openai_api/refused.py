"""Parameters of other servers and of OpenAI's other endpoints that are refused by name: to ignore them would be to
answer another question. Beside each stand the values that ask for nothing special, which are fine, as null is."""

from collections.abc import Mapping
from typing import Any

Refused = Mapping[str, tuple[Any, ...]]

SHARED: Refused = {
    "prompt_embeds": (),
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prediction": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "min_length": (0,),
    "skip_special_tokens": (True,),
    "enable_thinking": (True,),
    "thinking_token_budget": (),
}
# Everywhere but in TGI's dialect, which has them.
OPENAI: Refused = {**SHARED, "grammar": (), "typical_p": (1,)}
CHAT: Refused = {
    **OPENAI,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
COMPLETIONS: Refused = {**OPENAI, "tools": ([],), "top_logprobs": ()}
RESPONSES: Refused = {
    **OPENAI,
    "n": (1,),
    "access_programs": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "context_management": ([],),
    "moderation": (),
    "prompt_cache_options": ({},),
}
