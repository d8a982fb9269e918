"""The one error of the benchmarks' own that a person can put right; every other ValueError is a mistake of theirs."""


class BenchError(Exception):
    """An option, a file or a machine that a measurement cannot do with; the message says what would."""
