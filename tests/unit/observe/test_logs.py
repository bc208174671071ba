"""What a log line holds, and what keeps the log from drowning or stalling the gateway."""

from __future__ import annotations

import io
import json
import logging
import threading

import pytest
import structlog

from gateway.core.types import Identity, Outcome, Reason
from gateway.observe import logs
from gateway.observe.exchange import Exchange, Labels


@pytest.fixture
def lines():
    """The lines written, parsed; complete once the writer is closed by calling it."""
    stream = io.StringIO()
    writer = logs.LineWriter(stream)
    before = structlog.get_config()
    handlers, level = logging.root.handlers[:], logging.root.level
    logs.configure(writer)

    def written():
        writer.close()
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield written
    writer.close()
    structlog.configure(**before)
    logging.root.handlers, logging.root.level = handlers, level


def an_exchange(**changes):
    exchange = Exchange("req-1", "/v1/chat/completions", 100.0)
    exchange.identity = Identity("k1", "interactive", "acme")
    exchange.labels = Labels("interactive", "short", "chat")
    exchange.outcome, exchange.ended_at, exchange.status = Outcome.COMPLETED, 103.0, 200
    for name, value in changes.items():
        setattr(exchange, name, value)
    return exchange


def test_a_request_is_one_line_with_who_how_long_and_how_it_ended(lines):
    logs.RequestLog(lambda: 0.0).ended(an_exchange(waited_s=0.5, dispatched_at=100.5, first_token_at=101.0))
    (line,) = lines()
    assert line["event"] == "request"
    assert (line["request_id"], line["key_id"], line["tenant"]) == ("req-1", "k1", "acme")
    assert (line["service_class"], line["length_class"], line["pool"]) == ("interactive", "short", "chat")
    assert (line["outcome"], line["status"]) == ("completed", 200)
    assert (line["queued_s"], line["ttft_s"], line["engine_ttft_s"], line["request_s"]) == (0.5, 1.0, 0.5, 3.0)


def test_a_flood_of_refusals_is_sampled_and_says_so(lines):
    now = [0.0]
    log = logs.RequestLog(lambda: now[0])
    for _ in range(logs.REFUSAL_LINES_MAX + 5):
        log.ended(an_exchange(outcome=Outcome.REFUSED, reason=Reason.QUEUE_FULL))
    now[0] += logs.REFUSAL_INTERVAL_S
    log.ended(an_exchange(outcome=Outcome.REFUSED, reason=Reason.QUEUE_FULL))
    written = lines()
    summary = [line for line in written if line["event"] == "refusals_not_logged"]
    assert [(line["reason"], line["count"]) for line in summary] == [("queue_full", 5)]
    assert len(written) - len(summary) == logs.REFUSAL_LINES_MAX + 1


def test_what_completes_is_never_sampled(lines):
    log = logs.RequestLog(lambda: 0.0)
    for _ in range(logs.REFUSAL_LINES_MAX * 2):
        log.ended(an_exchange())
    assert len(lines()) == logs.REFUSAL_LINES_MAX * 2


def test_a_callers_own_id_is_cut_to_safe_characters():
    assert logs.safe_caller_id('a"b\n' + "x" * 500) == "a_b_" + "x" * 124
    assert logs.safe_caller_id(None) is None


def test_an_exceptions_text_stays_out_of_the_log(lines):
    with pytest.raises(ValueError) as raised:
        json.loads("the prompt was: tell me a secret")
    structlog.get_logger().error("crashed", exc_info=raised.value)
    (line,) = lines()
    assert line["exception"] == "JSONDecodeError"
    assert line["stack"]
    assert "secret" not in json.dumps(line)


def test_a_librarys_warning_arrives_without_its_arguments(lines):
    logging.getLogger("somewhere").warning("odd header %s", "secret")
    (line,) = lines()
    assert (line["event"], line["logger"]) == ("library", "somewhere")
    assert "secret" not in json.dumps(line)


class Stuck(io.StringIO):
    """A stream whose reader stalls."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.release = threading.Event()

    def write(self, text):
        self.entered.set()
        self.release.wait()
        return super().write(text)


def test_a_stalled_reader_costs_lines_and_never_the_callers_time():
    stream = Stuck()
    writer = logs.LineWriter(stream)
    lost = []
    writer.dropped = lost.append
    writer.write("first\n")
    stream.entered.wait()
    for _ in range(logs.LINES_WAITING_MAX + 3):
        writer.write("line\n")
    assert sum(lost) == 3
    stream.release.set()
    writer.close()
    assert len(stream.getvalue().splitlines()) == logs.LINES_WAITING_MAX + 1
