import os
from pathlib import Path

# Before torch is imported, here and in the servers that tests start: on models this small a second thread costs
# more than it gives, and threads that spin for each other stall on a machine that does anything else.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from server.settings_loading import load_settings
from server.weights import WeightsError, WeightStore

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The tiny pair's real weights, converted; fetched if need be. For tests marked `weights`.

    Fails, with the reason, where they cannot be had: a skipped test would look like a passed one.
    """
    settings = load_settings(ROOT / "configs" / "tiny.yaml")
    try:
        return WeightStore(settings.cache_dir).resolve(settings.models.target)
    except WeightsError as error:
        pytest.fail(str(error), pytrace=False)
