import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from gateway.identity import fetched_keys
from gateway.identity.fetched_keys import AGAIN_S_MIN, BELIEVED_S_MAX, Fetch, FetchedKeys, KeysUnreachable
from gateway.identity.signing_keys import KeySet
from gateway.testing import issuer

OLD, NEW = issuer.key_set(issuer.public_jwk("EdDSA", "old")), issuer.key_set(issuer.public_jwk("EdDSA", "new"))


class Address:
    """An issuer's address that answers when a test lets it, and the keys that are in force."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.answers: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.asked = 0
        self.in_force: tuple[KeySet, float] | None = None
        self.told: list[Fetch] = []
        self.keys = FetchedKeys(self.fetch, self.put_in_force, self.tell, lambda: self.now)

    async def fetch(self) -> bytes:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put_in_force(self, key_set: KeySet, believed_until: float) -> None:
        self.in_force = (key_set, believed_until)

    def tell(self, result: Fetch) -> None:
        self.told.append(result)

    async def until_told(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.told) < count:  # noqa: ASYNC110 - the end of a fetch has no event
                await asyncio.sleep(0)

    def names(self) -> set[str]:
        return set() if self.in_force is None else set(self.in_force[0].keys)


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    made = Address()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.keys.run())
        yield made
        running.cancel()


async def test_the_set_is_fetched_at_the_start_and_believed_for_a_day(address: Address) -> None:
    await address.answers.put(OLD)
    await address.until_told(1)
    assert (address.names(), address.told) == ({"old"}, [Fetch.TAKEN])
    assert address.in_force is not None
    assert address.in_force[1] == address.now + BELIEVED_S_MAX


async def test_an_unknown_key_is_looked_for_once_for_all_who_wait(address: Address) -> None:
    await address.answers.put(OLD)
    await address.until_told(1)
    address.now += AGAIN_S_MIN
    async with asyncio.TaskGroup() as callers:
        waiting = [callers.create_task(address.keys.look_again()) for _ in range(100)]
        await address.answers.put(NEW)
    assert [each.result() for each in waiting] == [True] * 100
    assert (address.asked, address.names()) == (2, {"new"})


async def test_forged_key_names_make_no_more_fetches_than_the_interval_allows(address: Address) -> None:
    await address.answers.put(OLD)
    await address.until_told(1)
    for _ in range(1000):
        assert not await address.keys.look_again()
        address.now += AGAIN_S_MIN / 1001
    assert address.asked == 1


async def test_a_clock_that_is_set_back_keeps_nobody_from_newer_keys(address: Address) -> None:
    await address.answers.put(OLD)
    await address.until_told(1)
    address.now -= BELIEVED_S_MAX
    await address.answers.put(NEW)
    assert await address.keys.look_again()
    assert address.names() == {"new"}


@pytest.mark.parametrize("failure", [KeysUnreachable("answers with status 503"), b"{}", b"<html>", TimeoutError()])
async def test_a_fetch_that_fails_leaves_the_last_good_set_in_force(
    address: Address, failure: bytes | Exception
) -> None:
    await address.answers.put(OLD)
    await address.until_told(1)
    address.now += AGAIN_S_MIN
    await address.answers.put(failure)
    assert await address.keys.look_again()
    assert address.names() == {"old"}
    assert address.told[-1] is (Fetch.UNUSABLE if isinstance(failure, bytes) else Fetch.UNREACHABLE)
    assert not await address.keys.look_again()


async def test_a_failure_is_told_once_and_so_is_its_end() -> None:
    with capture_logs() as lines:
        address = Address()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(address.keys.run())
            down = KeysUnreachable("answers with status 503")
            for round_, answer in enumerate([down, down, down, OLD, OLD, NEW], start=1):
                await address.answers.put(answer)
                if round_ > 1:
                    assert await address.keys.look_again()
                await address.until_told(round_)
                address.now += AGAIN_S_MIN
            running.cancel()
    assert [line["event"] for line in lines] == [
        "signing_keys_not_fetched",
        "signing_keys_in_force",
        "signing_keys_in_force",
    ]
    assert lines[0]["problem"] == "answers with status 503"
    assert lines[0]["keys_in_force"] == 0


async def test_that_the_keys_are_too_old_is_told_too() -> None:
    with capture_logs() as lines:
        address = Address()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(address.keys.run())
            down = KeysUnreachable("answers with status 503")
            for round_, answer in enumerate([OLD, down, down, down], start=1):
                await address.answers.put(answer)
                if round_ > 1:
                    assert await address.keys.look_again()
                await address.until_told(round_)
                address.now += AGAIN_S_MIN if round_ < 3 else BELIEVED_S_MAX
            running.cancel()
    assert [line.get("keys_in_force") for line in lines] == [None, 1, 0]


async def test_who_waits_for_keys_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_keys, "LOOK_S_MAX", 0.0)
    address = Address()
    assert await address.keys.look_again()
    assert address.asked == 0
