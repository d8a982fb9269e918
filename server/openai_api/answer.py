"""Shared by both dialect endpoints: an answer's constant fields, its token entries, and how a request is served."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from server.errors import context_exceeded, invalid
from server.generation import Generation
from server.generation_plan import GenerationPlan
from server.live_model import LiveModel
from server.streaming import (
    SETTLE_SECONDS,
    Chunks,
    ChunkStream,
    ClientGoneError,
    WholeAnswer,
    data_events,
    while_connected,
)
from server.telemetry.request_watch import RequestWatch
from server.text.chat_template import PromptTooLongError, TemplateError
from server.text.compiling import ConstraintsBusyError
from server.workers import CONSTRAINTS, PROMPTS, WorkPool, busy

T = TypeVar("T")
_GONE = 499  # nobody reads it; it shows in access logs


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of an answer repeats."""

    id: str
    object: str
    model: str
    fingerprint: str
    created: int

    @classmethod
    def new(cls, prefix: str, object: str, model_name: str, model: LiveModel) -> "Envelope":
        return cls(f"{prefix}-{uuid.uuid4().hex}", object, model_name, model.fingerprint, int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class Renderer(Protocol):
    """Writes a generation in one dialect."""

    def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """The answer in pieces, for a stream."""
        ...

    async def whole(self, generation: Generation) -> Any:
        """The answer in one."""
        ...


def planning_pool(constrained: object, tool_choice: object = None) -> WorkPool:
    """Where to plan a request. constrained: truthy if its answer must obey something; a forced call must, too."""
    return CONSTRAINTS if constrained or tool_choice not in (None, "none", "auto") else PROMPTS


async def in_thread(
    build: Callable[..., T], *arguments: Any, model: LiveModel, param: str, pool: WorkPool = PROMPTS
) -> T:
    """Render and tokenise off the event loop: a big prompt, or many long stop strings, take tens of milliseconds.

    ApiError for a prompt that is too long or cannot be rendered, and if too much waits for the pool.
    """
    try:
        return await pool.run(build, *arguments)
    except PromptTooLongError as error:
        raise context_exceeded(model.max_context, error.tokens, error.exact, param) from None
    except ConstraintsBusyError:
        raise busy("grammar to be compiled") from None
    except (TemplateError, ValueError) as error:
        raise invalid(f"{error}.", param) from None


async def answer(
    request: Request,
    stream: bool,
    plan: Coroutine[Any, Any, GenerationPlan],
    model: LiveModel,
    renderer: Renderer,
    drain_seconds: float,
    operation: str,
    events: Callable[[Chunks], AsyncIterator[bytes]] = data_events,
) -> Response:
    """Plan, submit, and answer; a client that leaves meanwhile stops the work at whatever stage it is.

    operation: what telemetry calls it. events: how a stream's chunks become server-sent events.
    """
    watch: RequestWatch = request.app.state.telemetry.watch(request.headers, operation, stream)
    handle: Generation | RequestWatch = watch  # what is to be closed at the end
    try:
        handle = generation = Generation(await while_connected(request, plan), model, watch)
        if stream:
            await while_connected(request, generation.settle(SETTLE_SECONDS))
            response: Response = ChunkStream(renderer.chunks(generation), generation, drain_seconds, events)
        else:
            whole = await while_connected(request, renderer.whole(generation))
            response = await asyncio.to_thread(WholeAnswer, whole)
            generation.close()
        return response
    except ClientGoneError:
        handle.close()
        return Response(status_code=_GONE)
    except BaseException as error:
        watch.fail(error)
        handle.close()
        raise
