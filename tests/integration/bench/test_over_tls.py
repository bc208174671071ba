"""Over TLS: what a handshake takes is in no latency."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import bench_kit as kit
from bench_stage import PATIENT, Model, Records, bench, run_words

from gateway.testing.certificate import certificate


async def test_over_tls_handshakes_lie_before_the_run_and_those_in_it_are_counted_apart(
    folder: Path, tmp_path: Path
) -> None:
    tls, path = certificate(tmp_path)
    model = Model(folder)
    all_are_open = asyncio.Barrier(20)

    async def script(asked: Any, reply: Any) -> None:
        await all_are_open.wait()  # so that every request has a connection of its own
        await model(asked, reply)

    async with kit.scripted(script, tls=tls) as server:
        words = run_words(server.url, folder, tmp_path / "runs", request_rate=400, drain_deadline=60)
        code, out, err = await bench(*words, *PATIENT, SSL_CERT_FILE=str(path))
    assert code == 0, out + err
    records = Records(tmp_path / "runs")
    opened = [row for row in records.rows if "connect_ms" in row]
    assert records.json("measurements")["client"]["connections_opened"] == len(opened)
    assert len(opened) <= 2, "a socket that the server has just closed may be opened anew, no more"
    assert f"{len(opened)} connections opened during the run" in out


async def test_a_server_whose_certificate_is_not_trusted_is_there_and_that_is_said(
    folder: Path, tmp_path: Path
) -> None:
    tls, _ = certificate(tmp_path)
    async with kit.scripted(Model(folder), tls=tls) as server:
        code, _, err = await bench(*run_words(server.url, folder, tmp_path / "runs"))
    assert code == 1
    assert f"no TLS with who listens at {server.url}" in err
    assert "SSL_CERT_FILE" in err
