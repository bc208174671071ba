"""Where requests go and as whom: base URL, credentials and engine priority by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.corpus.tokenizer import PromptForm
from bench.errors import UsageError

ANY_CLASS = "*"
PATHS = {PromptForm.CHAT: "/v1/chat/completions", PromptForm.COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """One server under test.

    keys: tenant, service class, class or ANY_CLASS to the key sent as a bearer token. Never printed, never recorded.
    key_names: the environment variables that the keys came from; these are recorded.
    priority: class name to the integer sent as X-Vllm-Priority, for engines that are tried without a gateway.
    metrics_urls: /metrics of the engines behind the target, by engine; those that are not to be read are not in it.
    ops_url: of a gateway that says there which policy it has in force.
    """

    name: str
    base_url: str
    key_names: Mapping[str, str]
    priority: Mapping[str, int]
    metrics_urls: Mapping[str, str] = field(default_factory=dict)
    ops_url: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def headers(self, class_name: str, *others: str | None) -> dict[str, str]:
        """`others` are the request's tenant and service class: a key that is stated for one of them comes first."""
        headers: dict[str, str] = {}
        names = [name for name in (*others, class_name, ANY_CLASS) if name is not None]
        key = next((self.keys[name] for name in names if name in self.keys), None)
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if class_name in self.priority:
            headers["X-Vllm-Priority"] = str(self.priority[class_name])
        return headers

    def public(self) -> dict[str, object]:
        """What a record may say of the target."""
        said = {
            "name": self.name,
            "base_url": self.base_url,
            "credential_env": dict(self.key_names),
            "engine_priority": dict(self.priority),
            "engine_metrics_urls": list(self.metrics_urls.values()),
            "ops_url": self.ops_url,
        }
        return {key: value for key, value in said.items() if value}


def resolve_keys(key_names: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Read each key from its environment variable; raises UsageError naming the variable that is not set."""
    keys: dict[str, str] = {}
    for class_name, name in key_names.items():
        value = environment.get(name, "")
        if not value.isascii() or not value.isprintable() or not value.strip():
            whose = "all classes" if class_name == ANY_CLASS else f"class {class_name}"
            raise UsageError(
                f"Environment variable {name} (credential of {whose}) is unset, empty or no key. Export it."
            )
        keys[class_name] = value
    return keys


def clean_url(url: str, where: str) -> str:
    """http(s)://host[:port][/prefix] without a closing slash or `/v1`; raises UsageError naming `where`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable:
        raise UsageError(f"{where}: {url!r} is no URL of a server. Give http://HOST:PORT.")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"{where}: the URL carries a credential, query or fragment. Keys come from the environment.")
    return url.rstrip("/").removesuffix("/v1")


def metrics_url(url: str, where: str) -> str:
    """The engine's /metrics, given its base URL or the address itself."""
    cleaned = clean_url(url, where)
    return cleaned if cleaned.endswith("/metrics") else f"{cleaned}/metrics"


def metrics_urls(urls: str | Iterable[str] | None, where: str) -> dict[str, str]:
    """By engine, which is called as its address is; one that is named twice is one."""
    given = [urls] if isinstance(urls, str) else urls or ()
    pages = dict.fromkeys(metrics_url(url, where) for url in given)
    return {page.partition("://")[2].removesuffix("/metrics"): page for page in pages}
