"""GenerationPlan: what a request comes to once its body, its prompts and its constraint have been read."""

from dataclasses import dataclass

from core.sequence import GenerationRequest
from server.text.chat_format import AnswerReading
from server.text.constraints import Constraint
from server.text.stop_strings import StopAutomaton


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """What to generate, resolved: sequences in the order of the prompts, each prompt's candidates together.

    answer_id: the response's own.
    prompt_tokens: of all prompts, each counted once however many candidates it has. choices_per_prompt: how many of
    its candidates are answers; all of them, unless the best are to be picked (Generation.best).
    show_stop: whether a stop string that ends an answer is part of its text. list_tokens: whether deltas list their
    tokens (for logprobs). warnings: sentences for the report. prompt_param: the request's field that an overlong
    prompt is blamed on. constraint: what every answer must be; constraint_param: the field that says
    so. reading: which markup in the answers' text is read by whoever renders them; None for text as it is.
    """

    answer_id: str
    requests: tuple[GenerationRequest, ...]
    prompt_tokens: int
    candidates_per_prompt: int
    choices_per_prompt: int
    stops: StopAutomaton | None
    show_stop: bool
    list_tokens: bool
    warnings: tuple[str, ...]
    prompt_param: str
    constraint: Constraint | None = None
    constraint_param: str | None = None
    reading: AnswerReading | None = None
