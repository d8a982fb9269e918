"""The routes of TGI's dialect, and what the OpenAPI document says of them."""

from functools import partial

from fastapi import FastAPI

from server.openapi import answers, takes
from server.readiness import Readiness
from server.serving_config import ServingConfig
from server.tgi_api.answer_schemas import ChatTokenized, Generated, GeneratedList, Info, StreamedToken, TgiError
from server.tgi_api.generate import GenerateEndpoints
from server.tgi_api.info import InfoEndpoints
from server.tgi_api.schemas import ChatTokenizeBody, GenerateBody


def add_tgi_routes(app: FastAPI, config: ServingConfig, readiness: Readiness) -> None:
    generate, info = GenerateEndpoints(config, readiness), InfoEndpoints(config, readiness)
    add, told = app.add_api_route, partial(answers, error=TgiError, ending="")
    takes_text = takes(GenerateBody, config)
    add(
        "/",
        generate.generate_compat,
        methods=["POST"],
        responses=told(GeneratedList, StreamedToken),
        openapi_extra=takes_text,
    )
    add(
        "/generate",
        generate.generate,
        methods=["POST"],
        responses=told(Generated, StreamedToken),
        openapi_extra=takes_text,
    )
    add(
        "/generate_stream",
        generate.generate_stream,
        methods=["POST"],
        responses=told(None, StreamedToken),
        openapi_extra=takes_text,
    )
    add("/info", info.info, methods=["GET"], responses=told(Info))
    add(
        "/chat_tokenize",
        info.chat_tokenize,
        methods=["POST"],
        responses=told(ChatTokenized),
        openapi_extra=takes(ChatTokenizeBody, config),
    )
