"""What can be wrong with a model's files; the messages are meant for whoever started the server."""


class UnsupportedModel(ValueError):  # noqa: N818
    """The files are sound but this engine cannot run, or has not proved, what they hold."""


class InvalidModelFile(ValueError):  # noqa: N818
    """The files are damaged, incomplete or not what their name says."""
