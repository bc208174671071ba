"""Request targets: a whole address is read as its path, anything else stays what it is."""

from __future__ import annotations

import pytest

from gateway.wire.targets import origin_form


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models?a=http://x/y", "/v1/models?a=http://x/y"),
        ("http://gateway/v1/models", "/v1/models"),
        ("HTTPS://gateway:8443/v1/models?a=b", "/v1/models?a=b"),
        ("http://[::1]:8080/v1/models", "/v1/models"),
        ("http://gateway", "/"),
        ("http://gateway?a=b", "/?a=b"),
        ("http://gateway//v1/models", "//v1/models"),
        ("http://gateway/%761/models", "/%761/models"),
    ],
)
def test_an_address_is_its_path(target, path):
    assert origin_form(target) == path


@pytest.mark.parametrize(
    "target",
    ["*", "gateway:80", "http://", "http:///v1/models", "http://user@gateway/v1/models", "ftp://gateway/v1/models", ""],
)
def test_what_is_neither_form_stays_as_it_is_and_is_no_path(target):
    assert origin_form(target) == target
    assert not target.startswith("/")
