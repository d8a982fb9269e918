"""Instruments: the catalogue's metrics as OpenTelemetry instruments of one meter."""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from server.telemetry.catalogue import Metric

Values = Callable[[], Iterable[tuple[float, Mapping[str, str]]]]


class Instruments:
    """Makes instruments; of each metric one."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def counter(self, metric: Metric) -> Counter:
        """One to be added to. Without labels it is 0 from the start, rather than absent."""
        counter = self._meter.create_counter(metric.name, metric.unit, metric.description)
        if not metric.labels:
            counter.add(0)
        return counter

    def observed_counter(self, metric: Metric, values: Values) -> None:
        """One whose totals are kept elsewhere. values: called in the thread of whoever collects."""
        self._meter.create_observable_counter(metric.name, [_callback(values)], metric.unit, metric.description)

    def gauge(self, metric: Metric, values: Values) -> None:
        """values: called in the thread of whoever collects."""
        self._meter.create_observable_gauge(metric.name, [_callback(values)], metric.unit, metric.description)

    def histogram(self, metric: Metric) -> Histogram:
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.boundaries
        )


def _callback(values: Values) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(value, labels) for value, labels in values()]
