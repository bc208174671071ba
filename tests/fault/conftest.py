"""These tests run as those of the proxy do."""

from tests.integration.proxy.conftest import logged, nothing_blocks_the_loop, pytest_asyncio_loop_factories

__all__ = ["logged", "nothing_blocks_the_loop", "pytest_asyncio_loop_factories"]
