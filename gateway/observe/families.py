"""The metric families that are counted as things happen (CONTRACT 5), as one set.

Owns names, help texts, labels and buckets. Label values come from closed sets: classes, pools, engines and routes of
the configuration, and enums. Never a tenant, a key, a model name that a caller wrote, or a request id.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from gateway.observe.exposition import Count, Distribution, Family, Scraped, page

COMMON = ("service_class", "length_class", "pool")
_WAIT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)
_REQUEST_S = (*_WAIT_S, 600, 1800, 3600)  # nothing limits how long an answer may be
_ENGINE_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120)  # fewer: by engine there are the most series
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENIZE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_SHARE = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_ERROR_RATIO = (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)


class Families:
    """One set of families; each gateway (and each test) has its own."""

    def __init__(self) -> None:
        self._all: list[Family[Count] | Family[Distribution]] = []
        self.offered = self._counter("gateway_offered_total", "Requests on generation routes.", COMMON)
        self.requests = self._counter("gateway_requests_total", "Offered requests that ended.", (*COMMON, "outcome"))
        self.refusals = self._counter("gateway_refusals_total", "Answers by the gateway itself.", (*COMMON, "reason"))
        self.slo = self._counter(
            "gateway_slo_total",
            "Objectives of a class met and missed, over requests that reached admission.",
            (*COMMON, "objective", "met"),
        )
        self.reloads = self._counter("gateway_reloads_total", "Changes of configuration taken or refused.", ("result",))
        self.repeats = self._counter(
            "gateway_repeats_total", "Ended requests that were refused before: load that refusals make.", COMMON
        )
        self.slices = self._counter(
            "gateway_slices_total",
            "Slices of long prompts that ended, and prompts that could not be sliced.",
            (*COMMON, "result"),
        )
        self.recalls = self._counter("gateway_recalls_total", "Long prompts taken back for short ones.", COMMON)
        self.slice_cached = self._histogram(
            "gateway_slice_cached_ratio", "Share of a sliced prompt that its request found cached.", COMMON, _SHARE
        )
        self.shadow_comparisons = self._counter(
            "gateway_shadow_comparisons_total", "Requests that both policies have decided on.", COMMON
        )
        self.shadow_disagreements = self._counter(
            "gateway_shadow_disagreements_total",
            "Requests that the shadow policy would have treated otherwise.",
            (*COMMON, "kind"),
        )
        self.shadow_failures = self._counter(
            "gateway_shadow_failures_total", "Faults of the shadow policy; each switched it off.", ()
        )
        self.http = self._counter("gateway_http_requests_total", "Answers on the public port.", ("route", "status"))
        self.connections_refused = self._counter(
            "gateway_connections_refused_total", "Connections beyond a port's bound, told so and closed.", ()
        )
        self.signing_key_fetches = self._counter(
            "gateway_signing_key_fetches_total", "Fetches of the token issuer's key set.", ("result",)
        )
        self.resends = self._counter(
            "gateway_engine_resends_total", "Requests sent again: a kept connection was closed unread.", ("engine",)
        )
        self.tap_overflows = self._counter(
            "gateway_tap_overflows_total", "Stream lines too long to look into; they were relayed all the same.", COMMON
        )
        self.log_lines_dropped = self._counter("gateway_log_lines_dropped_total", "Log lines nobody took in time.", ())
        self.trace_spans = self._counter(
            "gateway_trace_spans_total", "Spans that a collector took, or did not.", ("result",)
        )
        self.queue_wait = self._histogram(
            "gateway_queue_wait_seconds", "Waits in line that ended.", (*COMMON, "outcome"), _WAIT_S
        )
        self.ttft = self._histogram(
            "gateway_time_to_first_token_seconds", "Streams: from arrival to the first token.", COMMON, _WAIT_S
        )
        self.engine_ttft = self._histogram(
            "gateway_engine_time_to_first_token_seconds",
            "Streams: from dispatch to the first token.",
            (*COMMON, "engine"),
            _ENGINE_TTFT_S,
        )
        self.request_s = self._histogram(
            "gateway_request_seconds", "Completed requests: from arrival to the last byte.", COMMON, _REQUEST_S
        )
        self.gap = self._histogram(
            "gateway_stream_gap_seconds", "Gaps between network chunks of a stream.", COMMON, _GAP_S
        )
        self.stall = self._histogram("gateway_longest_stall_seconds", "The longest gap of each stream.", COMMON, _GAP_S)
        self.prompt_tokens = self._counter("gateway_prompt_tokens_total", "Prompt tokens by engine usage.", COMMON)
        self.output_tokens = self._counter("gateway_output_tokens_total", "Output tokens by engine usage.", COMMON)
        self.count_error = self._histogram(
            "gateway_token_count_error_ratio",
            "How far the counted prompt tokens are from the engine's usage, over that; sign: over, under, equal.",
            ("pool", "method", "sign"),
            _ERROR_RATIO,
        )
        self.tokenize_s = self._histogram(
            "gateway_tokenize_seconds", "Cost of one token count.", ("method",), _TOKENIZE_S
        )
        self.loop_lag = self._histogram(
            "gateway_event_loop_lag_seconds", "How late the event loop ran what was due.", (), _LAG_S
        )

    def page(self, scraped: Iterable[Scraped], *, open_metrics: bool = False) -> bytes:
        """Write every family, those that `scraped` yields included."""
        return page(chain(self._all, scraped), open_metrics=open_metrics)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Family[Count]:
        family = Family(Count, name, text, labels)
        self._all.append(family)
        return family

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]
    ) -> Family[Distribution]:
        family = Family(Distribution, name, text, labels, bounds)
        self._all.append(family)
        return family
