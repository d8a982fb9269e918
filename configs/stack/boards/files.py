"""The dashboards as files: which there are, where they lie, and what stands in them."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from configs.stack.boards.load import load
from configs.stack.boards.quality import quality
from configs.stack.boards.speculation import speculation
from configs.stack.boards.speed import speed
from configs.stack.boards.traces import traces

FOLDER = Path(__file__).parent.parent / "grafana" / "dashboards"
BOARDS = {"speed": speed, "speculation": speculation, "quality": quality, "load": load, "traces": traces}


def written(name: str) -> str:
    """The dashboard of that name as Grafana reads it."""
    return json.dumps(BOARDS[name]().build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
