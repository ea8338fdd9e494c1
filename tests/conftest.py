"""One thread a worker: two workers fill two cores, and results do not depend on how many there are."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("ordinary", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.load_profile("ordinary")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
