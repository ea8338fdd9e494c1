import importlib.util
from collections.abc import Iterator

import pytest

from tests.parallel.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    processes = Pool()
    yield processes
    processes.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of pytest-xdist for all of them, so that the processes are started once."""
    if importlib.util.find_spec("xdist") is None:
        return
    for item in items:
        if "tests/parallel" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("parallel"))
