"""LiveModel: the loaded model as handlers use it, its engine together with what turns text into tokens and back."""

import hashlib
from dataclasses import dataclass
from typing import Self

from scheduler.engine import AsyncEngine
from server.audit.auditor import Auditor
from server.serving_config import Served, ServingConfig
from server.text.chat_format import ChatFormat
from server.text.chat_template import PromptBuilder
from server.text.constraints import Constraints
from server.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class LiveModel:
    """max_context: what one sequence may take, prompt and output together. The other fields are as in Served and its
    Language. chat_format: how the model marks calls and reasoning.
    fingerprint: OpenAI's system_fingerprint, equal for equal vocabularies, templates and contexts. auditor: which loose
    answers are replayed, and what its guard has demoted."""

    engine: AsyncEngine
    token_bytes: TokenBytes
    chat_format: ChatFormat
    prompts: PromptBuilder
    constraints: Constraints
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_context: int
    has_draft: bool
    calibrated_drafters: frozenset[str]
    fingerprint: str
    auditor: Auditor

    @classmethod
    def build(cls, served: Served, config: ServingConfig, auditor: Auditor | None = None) -> Self:
        language, max_context = served.language, served.engine.max_context
        tokenizer, token_bytes, controls = language.tokenizer, language.token_bytes, language.control_token_ids
        template = str(getattr(tokenizer, "chat_template", ""))
        tokens = tokenizer.get_added_vocab()
        chat_format = ChatFormat.detect(template, tokens, config.tool_call_parser, config.reasoning_parser)
        digest = hashlib.sha256(f"{config.model}\0{language.vocab_size}\0{max_context}\0{template}".encode())
        return cls(
            engine=served.engine,
            token_bytes=token_bytes,
            chat_format=chat_format,
            prompts=PromptBuilder(tokenizer, token_bytes, controls, max_context, chat_format),
            constraints=language.constraints,
            eos_token_ids=language.eos_token_ids,
            vocab_size=language.vocab_size,
            max_context=max_context,
            has_draft=served.has_draft,
            calibrated_drafters=served.calibrated_drafters,
            fingerprint=f"fp_{digest.hexdigest()[:10]}",
            auditor=auditor or Auditor(config.audit),
        )
