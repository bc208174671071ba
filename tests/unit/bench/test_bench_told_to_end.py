"""Told to end: the load is given up and written down, and what is being written is not cut."""

import asyncio
import os
import signal

import pytest

from bench.told_to_end import SIGNALS, ToldToEnd

pytestmark = pytest.mark.usefixtures("signals_as_in_a_terminal")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_work_is_cancelled_by_the_first_signal_and_nothing_is_after_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def work() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    with ToldToEnd() as told:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(told.cancels(work()))
        os.kill(os.getpid(), number)
        assert told.heard
    assert signal.getsignal(number) is before


def test_a_second_signal_cuts_what_takes_too_long_to_end() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ToldToEnd() as told, pytest.raises(KeyboardInterrupt):
        asyncio.run(told.cancels(work()))


def test_work_that_is_begun_after_the_signal_is_not_done() -> None:
    async def work() -> None:
        pytest.fail("somebody wants to end")

    with ToldToEnd() as told:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(told.cancels(work()))


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ToldToEnd() as told:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not told.heard
    finally:
        signal.signal(signal.SIGHUP, before)
