"""Parts that several tests of the evaluation share."""

import pytest

from benchmarks.evaluation.sandbox import Limits, Sandbox, SandboxError
from tests.benchmarks.conftest import config

__all__ = ["config"]


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return Sandbox.open(Limits(seconds=20.0, cpu_seconds=1))
    except SandboxError as error:
        pytest.skip(str(error))
