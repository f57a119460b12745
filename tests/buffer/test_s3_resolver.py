"""A producer that nobody closed flushes at exit, when asyncio has no threads left to look a host's name up in."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("s3fs")


def test_host_is_found_after_the_executor_was_shut_down() -> None:
    from forebay.buffer.store.s3 import _Resolver

    async def resolve() -> list[str]:
        loop = asyncio.get_running_loop()
        resolver = _Resolver(loop=loop)
        before = await resolver.resolve("localhost", 80)
        await loop.shutdown_default_executor()
        after = await resolver.resolve("localhost", 80)
        assert {found["host"] for found in before} == {found["host"] for found in after}
        return [found["host"] for found in after]

    assert "127.0.0.1" in asyncio.run(resolve())
