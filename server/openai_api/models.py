"""GET /v1/models and GET /v1/models/{id}."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.errors import model_not_found
from server.readiness import Readiness
from server.serving_config import ServingConfig


class ModelsEndpoints:
    """The served name and its aliases, each as a model of its own."""

    def __init__(self, config: ServingConfig, readiness: Readiness) -> None:
        self._config = config
        self._readiness = readiness
        self._created = int(time.time())

    async def list(self, _request: Request) -> Response:
        """List the models that requests may name."""
        names = [self._config.model, *self._config.aliases]
        return JSONResponse({"object": "list", "data": [self._card(name) for name in names]})

    async def retrieve(self, request: Request) -> Response:
        """One model. Its name may contain slashes."""
        name = str(request.path_params["name"])
        if not self._config.serves(name):
            raise model_not_found(name, self._config.model)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": self._config.owned_by,
            "max_model_len": self._readiness.model().max_context,
        }
