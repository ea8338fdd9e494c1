"""As the library's tests: one thread a worker, a seed before each."""

from tests.conftest import _seeded, pytest_configure

__all__ = ["_seeded", "pytest_configure"]
