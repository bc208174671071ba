"""Requests that live until the end of the process, and how they are cut."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.types import Outcome
from gateway.server.ending import Ending


async def a_request(ending, ended):
    with ending.serving() as service:
        try:
            async with service:
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(("cut", service.outcome_if_cancelled))
        except asyncio.CancelledError:
            ended.append(("left", service.outcome_if_cancelled))
            raise


async def started(*tasks):
    for _ in tasks:
        await asyncio.sleep(0)


async def test_it_is_idle_only_while_no_request_lives():
    ending = Ending()
    assert ending.idle.is_set()
    with ending.serving():
        assert not ending.idle.is_set()
        with ending.serving():
            assert len(ending) == 2
        assert not ending.idle.is_set()
    assert ending.idle.is_set()


async def test_cutting_ends_every_request_as_timed_out_by_us():
    ending, ended = Ending(), []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(a_request(ending, ended)) for _ in range(3)]
        await started(*tasks)
        assert ending.cut_all() == 3
    assert ended == [("cut", Outcome.ENGINE_ERROR)] * 3
    assert ending.idle.is_set()


async def test_a_client_that_leaves_is_not_a_cut():
    ending, ended = Ending(), []
    task = asyncio.get_running_loop().create_task(a_request(ending, ended))
    await started(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [("left", Outcome.CLIENT_GONE)]


async def test_cutting_twice_cuts_once():
    ending, ended = Ending(), []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(a_request(ending, ended))
        await started(task)
        ending.cut_all()
        ending.cut_all()
    assert len(ended) == 1


async def test_a_request_that_has_ended_is_not_cut_though_its_last_words_are_still_being_written():
    ending = Ending()
    with ending.serving() as over, ending.serving() as never_begun:
        async with over:
            pass
        assert ending.cut_all() == 0
        assert not over.is_cut
        assert not never_begun.is_cut


async def test_one_that_has_ended_keeps_no_other_from_being_cut():
    ending, ended = Ending(), []
    with ending.serving() as over:
        async with over:
            pass
        async with asyncio.TaskGroup() as group:
            task = group.create_task(a_request(ending, ended))
            await started(task)
            assert ending.cut_all() == 1
    assert ended == [("cut", Outcome.ENGINE_ERROR)]
