"""Which of the last requests can be explained, and that they hold on to nothing of a prompt."""

from __future__ import annotations

from gateway.observe import decisions
from gateway.observe.decisions import Decisions
from gateway.observe.exchange import Exchange, Exchanges


def an_exchange(name, engine=None):
    return Exchange(name, "/v1/chat/completions", 1_000.0, engine=engine, usage_told=print)


def test_a_flood_of_refusals_does_not_push_out_what_an_engine_got(monkeypatch):
    monkeypatch.setattr(decisions, "REFUSED_KEPT", 3)
    kept = Decisions(Exchanges())
    kept.ended(an_exchange("sent", engine="a"))
    for number in range(10):
        kept.ended(an_exchange(f"refused-{number}"))
    assert kept.explain("sent", 1_001.0)["engine"] == "a"
    assert kept.explain("refused-9", 1_001.0) is not None
    assert kept.explain("refused-6", 1_001.0) is None


def test_what_is_kept_lets_go_of_the_counted_prompt():
    kept = Decisions(Exchanges())
    exchange = an_exchange("one")
    kept.ended(exchange)
    assert exchange.usage_told is None


def test_what_is_alive_is_explained_too():
    living = Exchanges()
    living.open(an_exchange("alive"))
    assert Decisions(living).explain("alive", 1_000.5)["took_s"] == 0.5
