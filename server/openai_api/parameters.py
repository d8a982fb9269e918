"""From a validated body to a GenerationPlan: defaults filled in, ranges of this model and this server checked."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest
from core.verifiers.needs import NEEDS
from core.verifiers.params import VerifierParams
from core.verifiers.parse import VerifierError, check_window, parse_verifier
from server.errors import invalid, shorten
from server.generation_plan import GenerationPlan
from server.live_model import LiveModel
from server.openai_api.hints import misspelt
from server.openai_api.schemas import SamplingBody as Body
from server.openai_api.structured import compile_wish
from server.serving_config import ServingConfig
from server.text.constraints import Constraint
from server.text.stop_strings import StopAutomaton

_PREFERRED = ("multilevel", "model", "prompt_lookup", "datastore", "token_recycling")  # as "auto" goes


@dataclass(frozen=True, slots=True)
class _Speculation:
    verifier: VerifierParams
    drafter: str
    other_drafters: tuple[str, ...]
    num_draft_tokens: int
    adaptive: bool
    warnings: tuple[str, ...]


def make_plan(
    body: Body,
    prompts: Sequence[Sequence[int]],
    answer_id: str,
    config: ServingConfig,
    model: LiveModel,
    field: str,
    around: str | None = None,
) -> GenerationPlan:
    """Candidates in OpenAI's order: all of the first prompt, then all of the second, ... ApiError for what does not
    fit.

    field: the body's field that holds the prompts. A seed given by the client is used for every prompt, so that a
    prompt answers in a list as it does alone; without one each prompt gets a fresh seed. choice_index keeps the
    choices of one prompt apart. around: a grammar around what the body wants its answer to be (Constraints).
    """
    _check_counts(body, len(prompts), config)
    constraint = compile_wish(body.wishes, model.constraints, config.limits, around)
    speculation = _speculation(body, config, model)
    stop_ids = _token_ids(body.stop_token_ids or [], "stop_token_ids", config.limits.max_stop_token_ids, model)
    end_ids = stop_ids if body.ignore_eos else stop_ids | model.eos_token_ids
    requests: list[GenerationRequest] = []
    for prompt in prompts:
        seed = secrets.randbits(64) if body.seed is None else body.seed
        known, max_tokens = tuple(prompt), _max_tokens(body, len(prompt), model)
        for choice in range(body.candidates):
            requests.append(
                GenerationRequest(
                    request_id=f"{answer_id}-{len(requests)}",
                    prompt=known,
                    max_tokens=max_tokens,
                    sampling=_sampling(body, seed, choice, max_tokens, config, model),
                    verifier=speculation.verifier,
                    drafter=speculation.drafter,
                    other_drafters=speculation.other_drafters,
                    num_draft_tokens=speculation.num_draft_tokens,
                    adaptive=speculation.adaptive,
                    strict_prefix=config.strict_prefix if body.strict_prefix is None else body.strict_prefix,
                    end_token_ids=end_ids,
                    priority=body.priority or 0,
                    # One candidate's tell those of all.
                    prompt_logprobs=body.prompt_alternatives if choice == 0 else None,
                    verdicts=bool(body.return_provenance),
                )
            )
    return GenerationPlan(
        answer_id=answer_id,
        requests=tuple(requests),
        prompt_tokens=sum(len(prompt) for prompt in prompts),
        candidates_per_prompt=body.candidates,
        choices_per_prompt=body.choices,
        stops=_stops(body, config),
        show_stop=body.shows_stop,
        list_tokens=body.alternatives is not None,
        warnings=(
            *_unenforced(constraint),
            *speculation.warnings,
            *(f"'{name}' has no effect: the model answers as it was trained to." for name in body.without_effect),
            *misspelt(body.model_extra or ()),
        ),
        prompt_param=field,
        constraint=constraint[0] if constraint else None,
        constraint_param=constraint[1] if constraint else None,
    )


def _unenforced(constraint: tuple[Constraint, str] | None) -> list[str]:
    """Sentences for the report about what an answer is not held to."""
    if constraint is None:
        return []
    found, param = constraint
    return [f"Of '{param}' this is not enforced: {shorten(what, 200)}." for what in found.unenforced]


def _check_counts(body: Body, num_prompts: int, config: ServingConfig) -> None:
    candidates, limits = body.candidates, config.limits
    name = "n" if candidates == body.choices else "best_of"
    if candidates > limits.max_n:
        raise invalid(f"'{name}' must be at most {limits.max_n}, got {candidates}.", name)
    if candidates * num_prompts > limits.max_sequences:
        raise invalid(f"'{name}' times the number of prompts must be at most {limits.max_sequences}.", name)


def _max_tokens(body: Body, prompt_tokens: int, model: LiveModel) -> int:
    room = model.max_context - prompt_tokens
    limit = body.token_limit
    return max(1, room) if limit is None else min(limit, max(1, room))


def _sampling(
    body: Body, seed: int, choice: int, max_tokens: int, config: ServingConfig, model: LiveModel
) -> SamplingParams:
    least = body.min_tokens or 0
    limit = body.token_limit
    if limit is not None and least > limit:
        raise invalid(f"'min_tokens' must be at most the {limit} tokens of the answer, got {least}.", "min_tokens")
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_logit_bias(body, config, model),
        seed=seed,
        choice_index=choice,
        min_tokens=min(least, max_tokens),
        # Candidates are compared by their tokens' log-probabilities.
        logprobs=0 if body.alternatives is None and body.candidates > body.choices else body.alternatives,
    )


def _logit_bias(body: Body, config: ServingConfig, model: LiveModel) -> dict[int, float]:
    biases = body.logit_bias or {}
    if len(biases) > config.limits.max_logit_bias:
        raise invalid(f"'logit_bias' may have at most {config.limits.max_logit_bias} entries.", "logit_bias")
    for token_id in biases:
        if token_id >= model.vocab_size:
            raise invalid(
                f"'logit_bias' names token {token_id}; ids go from 0 to {model.vocab_size - 1}.", "logit_bias"
            )
    return biases


def _token_ids(ids: Sequence[int], param: str, most: int, model: LiveModel) -> frozenset[int]:
    if len(ids) > most:
        raise invalid(f"'{param}' may have at most {most} entries.", param)
    for token_id in ids:
        if not 0 <= token_id < model.vocab_size:
            raise invalid(f"'{param}' must be token ids from 0 to {model.vocab_size - 1}.", param)
    return frozenset(ids)


def _stops(body: Body, config: ServingConfig) -> StopAutomaton | None:
    stops, limits = body.stop or [], config.limits
    if len(stops) > limits.max_stop:
        raise invalid(f"'stop' may have at most {limits.max_stop} strings, got {len(stops)}.", "stop")
    if any(len(stop) > limits.max_stop_chars for stop in stops):
        raise invalid(f"'stop' strings may have at most {limits.max_stop_chars} characters.", "stop")
    return StopAutomaton(stop.encode() for stop in stops) if stops else None


def _speculation(body: Body, config: ServingConfig, model: LiveModel) -> _Speculation:
    try:
        asked = parse_verifier(
            body.verifier, config.verifier_defaults, config.default_verifier, config.allowed_verifiers
        )
    except VerifierError as error:
        raise invalid(f"{error}.", error.param) from error
    verifier, demoted = model.auditor.admitted(asked)
    able = [name for name in config.allowed_drafters if name in model.engine.drafters]
    drafts_nothing = verifier.type == "off" and body.drafter in (None, "auto")
    drafter = "none" if drafts_nothing else _drafter(body, config, able, model)
    drafts = _num_draft_tokens(body, config)
    adaptive = (body.draft_length or config.default_draft_length) == "adaptive"
    if verifier.type == "off":
        return _Speculation(verifier, "none", (), 0, False, ())
    free = adaptive and (body.drafter or config.default_drafter) == "auto"
    others = ("prompt_lookup",) if free and drafter != "prompt_lookup" and "prompt_lookup" in able else ()
    from_request = body.num_draft_tokens is not None or (isinstance(body.verifier, dict) and "window" in body.verifier)
    try:
        warning = check_window(asked, drafts, from_request)
    except VerifierError as error:
        raise invalid(f"{error}.", error.param) from error
    warnings = (demoted or warning, _without_memory(verifier, drafter, others, model))
    return _Speculation(verifier, drafter, others, drafts, adaptive, tuple(filter(None, warnings)))


def _without_memory(verifier: VerifierParams, drafter: str, others: tuple[str, ...], model: LiveModel) -> str | None:
    """A sentence for the report if the verifier would ask a correction memory that holds nothing of the drafter."""
    if not NEEDS[verifier.type].memory or drafter in model.calibrated_drafters:
        return None
    effect = "csd loosens nothing" if verifier.type == "csd" else f"{verifier.type} loosens only what fly does"
    if not model.calibrated_drafters.isdisjoint(others):
        effect += " of what it proposes"
    return f"No correction memory is loaded for the drafter '{drafter}': {effect}."


def _drafter(body: Body, config: ServingConfig, able: list[str], model: LiveModel) -> str:
    """The drafter by its own name; "auto" is the best of the able, those that this server has and allows."""
    name = config.default_drafter if body.drafter is None else body.drafter
    if name == "auto":
        preferred = [known for known in _PREFERRED if known in able]
        if not preferred:
            raise invalid("no drafter is available on this server; use the verifier 'off'.", "drafter")
        return preferred[0]
    if name not in able:
        shown, why = shorten(repr(name), 80), ""
        if name == "datastore" and name not in model.engine.drafters:
            why = ": this server has no files for it (speculation.datastore)"
        raise invalid(f"'drafter' {shown} is not available{why}; allowed: {', '.join(['auto', *able])}.", "drafter")
    return name


def _num_draft_tokens(body: Body, config: ServingConfig) -> int:
    drafts = body.num_draft_tokens
    if drafts is None:
        return config.default_num_draft_tokens
    if drafts > config.max_num_draft_tokens:
        allowed = f"from 1 to {config.max_num_draft_tokens}"
        raise invalid(f"'num_draft_tokens' must be an integer {allowed}, got {drafts}.", "num_draft_tokens")
    return drafts
