"""What can go wrong with weights, said so that the reader knows what to do next."""


class WeightsError(Exception):
    """Weights cannot be had; the message names what, why and what to do. No source after it is tried."""


class SourceUnavailableError(WeightsError):
    """This source does not give the weights; the next one in the list may."""
