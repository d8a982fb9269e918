"""create_app: the ASGI application, bound to its port before the models are loaded.

From the outside in: request ids, CORS, the error boundary, API keys, body limits, routes. Refusals of the inner
layers thus carry CORS headers and a request id, and nothing reads a body whose sender has no key.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.audit.auditor import Auditor
from server.audit.instruments import AuditInstruments
from server.audit.report import AuditEndpoints, AuditReport
from server.errors import ApiError, ErrorBoundary, handle_api_error, handle_http_exception
from server.openai_api.answer_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Detokenized,
    Health,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizerInfo,
    Version,
)
from server.openai_api.chat import ChatEndpoint
from server.openai_api.completions import CompletionEndpoint
from server.openai_api.models import ModelsEndpoints
from server.openai_api.responses import ResponsesEndpoint
from server.openai_api.responses_answers import ResponseEvent, WholeResponse
from server.openai_api.responses_schemas import ResponsesBody
from server.openai_api.schemas import ChatBody, CompletionBody
from server.openai_api.tokenization import DetokenizeBody, TokenizationEndpoints, TokenizeBody
from server.openapi import ErrorResponse, answers, at, secure, takes
from server.readiness import Loader, Readiness
from server.security import ApiKeys, BodyLimits, HeadAsGet, RequestId
from server.serving_config import ServingConfig
from server.telemetry.telemetry import Telemetry
from server.tgi_api.routes import add_tgi_routes
from server.web.page import add_page


def create_app(config: ServingConfig, load: Loader, telemetry: Telemetry | None = None) -> FastAPI:
    """Build the application.

    load: called once by the lifespan, in the background, while the port is already bound. It loads the models off
    the event loop (asyncio.to_thread) and returns an engine that has not been started; the application starts it,
    runs a first real forward through it, and only then says 200 on /health. If it raises, /health keeps saying 503,
    the log has the traceback, and `app.state.readiness.error` holds the exception.
    telemetry: the EngineObserver that the loader gives to AsyncEngine(..., observer=telemetry); one is made if absent.
    """
    telemetry = telemetry or Telemetry()
    auditor = Auditor(config.audit, config.verifier_defaults.values())
    AuditInstruments(auditor, telemetry.instruments)
    readiness = Readiness(config, load, auditor)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        readiness.begin(telemetry.begin)
        try:
            yield
        finally:
            await readiness.end()
            await asyncio.to_thread(telemetry.shutdown)

    # Its own pages about the API load their scripts from elsewhere; /openapi.json is there for whoever wants one.
    app = FastAPI(title="Slipstream", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None)
    app.state.readiness, app.state.telemetry = readiness, telemetry
    telemetry.follow(config.model, readiness.stats, readiness.memory_pairs)
    app.add_exception_handler(ApiError, handle_api_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    _add_middleware(app, config)
    _add_routes(app, config, readiness, telemetry)
    _add_audit(app, auditor)
    if config.api_keys:
        secure(app.openapi())  # the framework makes the document once and keeps it
    return app


def _add_middleware(app: FastAPI, config: ServingConfig) -> None:
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimits, max_bytes=config.limits.max_body_bytes, timeout=config.limits.body_timeout)
    app.add_middleware(ApiKeys, keys=config.api_keys)
    app.add_middleware(ErrorBoundary)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(RequestId)


def _add_routes(app: FastAPI, config: ServingConfig, readiness: Readiness, telemetry: Telemetry) -> None:
    models = ModelsEndpoints(config, readiness)
    chat, completion = ChatEndpoint(config, readiness), CompletionEndpoint(config, readiness)
    responses = ResponsesEndpoint(config, readiness)

    async def health(_request: Request) -> Response:
        """200 once a first forward has run, 503 with the reason before and while shutting down."""
        reason = readiness.reason()
        if reason is None:
            return JSONResponse({"status": "ok"})
        headers = {"Retry-After": str(config.queue_retry_after)}
        return JSONResponse({"status": readiness.status, "reason": reason}, status_code=503, headers=headers)

    async def metrics(_request: Request) -> Response:
        """Counters, gauges and histograms in Prometheus' text format."""
        text, media_type = await telemetry.scrape()
        return Response(text, media_type=media_type)

    async def create_chat_completion(request: Request) -> Response:
        return await chat(request)

    async def create_completion(request: Request) -> Response:
        return await completion(request)

    add = app.add_api_route
    add(
        "/v1/chat/completions",
        create_chat_completion,
        methods=["POST"],
        responses=answers(ChatCompletion, ChatCompletionChunk),
        openapi_extra=takes(ChatBody, config),
    )
    add(
        "/v1/completions",
        create_completion,
        methods=["POST"],
        responses=answers(Completion, Completion),
        openapi_extra=takes(CompletionBody, config),
    )
    add(
        "/v1/responses",
        responses.create,
        methods=["POST"],
        name="create_response",
        responses=answers(WholeResponse, ResponseEvent, ending=""),
        openapi_extra=takes(ResponsesBody, config),
    )
    stored = "/v1/responses/{response_id}"
    for method, path in (("GET", stored), ("DELETE", stored), ("POST", f"{stored}/cancel")):
        add(
            path,
            responses.absent,
            methods=[method],
            name="stored_response",
            status_code=404,
            responses=answers(),
            openapi_extra=at("response_id"),
        )
    tokens = TokenizationEndpoints(config, readiness)
    add(
        "/tokenize",
        tokens.tokenize,
        methods=["POST"],
        responses=answers(Tokenized),
        openapi_extra=takes(TokenizeBody, config),
    )
    add(
        "/detokenize",
        tokens.detokenize,
        methods=["POST"],
        responses=answers(Detokenized),
        openapi_extra=takes(DetokenizeBody, config),
    )
    add("/tokenizer_info", tokens.tokenizer_info, methods=["GET"], responses=answers(TokenizerInfo))
    add("/version", tokens.version, methods=["GET"], responses=answers(Version))
    add_tgi_routes(app, config, readiness)
    add_page(app)
    add("/v1/models", models.list, methods=["GET"], responses=answers(ModelList))
    add(
        "/v1/models/{name:path}",
        models.retrieve,
        methods=["GET"],
        responses=answers(ModelCard),
        openapi_extra=at("name"),
    )
    unwell = {"model": Health, "description": "Loading, shutting down, or broken."}
    add("/health", health, methods=["GET"], responses={200: {"model": Health}, 503: unwell})
    told = answers() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    add("/metrics", metrics, methods=["GET"], responses=told, response_class=Response)


def _add_audit(app: FastAPI, auditor: Auditor) -> None:
    audit = AuditEndpoints(auditor)
    add = app.add_api_route
    add("/v1/audit", audit.show, methods=["GET"], name="show_audit", responses=answers(AuditReport))
    told = answers(AuditReport)
    told[403] = {"model": ErrorResponse, "description": "The server's settings do not allow it."}
    add("/v1/audit", audit.clear, methods=["DELETE"], name="clear_audit", responses=told)
