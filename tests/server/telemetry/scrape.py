"""/metrics as Prometheus reads it."""

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


async def scraped(client: httpx.AsyncClient) -> dict[str, Metric]:
    """Families by name; the parser takes a counter's `_total` off its family, not off its samples."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return parsed(response.text)


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(families: dict[str, Metric], sample: str, **labels: str) -> float:
    """The sum of a sample's values over all series with these labels; 0 if there are none."""
    return sum(
        one.value
        for family in families.values()
        for one in family.samples
        if one.name == sample and labels.items() <= one.labels.items()
    )
