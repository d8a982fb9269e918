"""What the engine checks of a request before it becomes a job.

The server has resolved and checked what clients say; these are the engine's own conditions, without
which a round could fail or a sequence could never run. Breaking one is the caller's mistake, hence
ValueError; only a prompt that is too long is an answer to the client.
"""

from dataclasses import replace

from core.drafters.base import MODEL_DRAFTERS
from core.runtime import Runtime
from core.sequence import GenerationRequest
from scheduler.admission import ContextTooLong
from scheduler.drafting import is_loose
from scheduler.limits import SchedulerLimits

PRIORITY_BOUND = 2**31


def accept_request(
    request: GenerationRequest, runtime: Runtime, limits: SchedulerLimits, max_context: int
) -> GenerationRequest:
    """The request, its max_tokens cut to what max_context leaves. ValueError or ContextTooLong if it cannot run."""
    _check_values(request, runtime.target.vocab_size)
    _check_drafting(request, runtime.available_drafters(), limits)
    prompt_tokens, longest = len(request.prompt), max_context - 1
    if is_loose(request):
        # Its drafts are never cut, so a whole block must fit behind the prompt even in an empty pool.
        positions = runtime.pool.num_blocks * runtime.pool.block_size
        longest = min(longest, positions - 1 - request.num_draft_tokens)
    if prompt_tokens > longest:
        raise ContextTooLong(prompt_tokens, max(longest, 0))
    return replace(request, max_tokens=min(request.max_tokens, max_context - prompt_tokens))


def _check_values(request: GenerationRequest, vocab_size: int) -> None:
    if not request.request_id:
        raise ValueError("request_id must not be empty")
    if not request.prompt:
        raise ValueError("the prompt must have at least one token")
    if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
        raise ValueError(f"the prompt's token ids must be within 0 and {vocab_size - 1}")
    if request.max_tokens < 0:
        raise ValueError(f"max_tokens must not be negative, got {request.max_tokens}")
    if request.strict_prefix < 0:
        raise ValueError(f"strict_prefix must not be negative, got {request.strict_prefix}")
    if abs(request.priority) > PRIORITY_BOUND:
        raise ValueError(f"priority must be within -2^31 and 2^31, got {request.priority}")


def _check_drafting(request: GenerationRequest, available: tuple[str, ...], limits: SchedulerLimits) -> None:
    drafter, drafts = request.drafter, request.num_draft_tokens
    for name in (drafter, *request.other_drafters):
        if name not in ("none", *available):
            raise ValueError(f"drafter {name!r} is not available here; available: none, {', '.join(available)}")
    if request.other_drafters and (drafter not in MODEL_DRAFTERS or request.other_drafters != ("prompt_lookup",)):
        raise ValueError("only prompt_lookup may draft in another's place, and only in that of the draft model")
    if (drafter == "none") != (drafts == 0) or drafts < 0:
        raise ValueError(
            f"num_draft_tokens must be 0 without a drafter and positive with one, got {drafts} with {drafter!r}"
        )
    if request.verifier.type == "off" and drafter != "none":
        raise ValueError(f"verifier off does not draft, but the drafter is {drafter!r}")
    if is_loose(request) and drafts + 1 > limits.round_tokens:
        raise ValueError(
            f"num_draft_tokens of a loose verifier must be less than round_tokens ({limits.round_tokens}), got {drafts}"
        )
