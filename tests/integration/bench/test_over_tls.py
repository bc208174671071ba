"""Over TLS: what a handshake takes is in no latency."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import bench_kit as kit
from bench_stage import PATIENT, Model, Records, bench, run_words
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

VALID_FROM, VALID_UNTIL = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Of 127.0.0.1, signed by itself; what a client has to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), VALID_FROM, VALID_UNTIL)
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + signed.public_bytes(Encoding.PEM)
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    return tls, path


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
