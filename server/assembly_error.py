"""What assembling a runtime ends with when its parts do not go together."""


class AssemblyError(Exception):
    """The parts do not fit together, or not on this machine; the message says which and why."""
