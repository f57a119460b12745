"""Storage options: the names that s3fs and pandas users know, checked when given, masked when shown."""

from __future__ import annotations

import base64
import difflib
import pickle
import zlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

_MASK = "***"
_TUNING = frozenset({"connect_timeout", "read_timeout", "max_attempts"})


@dataclass(frozen=True, slots=True, repr=False)
class ClientOptions:
    """How to reach a store. The repr masks what may be secret."""

    _SHOWN: ClassVar[frozenset[str]] = _TUNING

    connect_timeout: float = 5.0
    """Seconds to wait for a connection."""
    read_timeout: float = 30.0
    """Seconds to wait for the next bytes of an answer; large uploads get more."""
    max_attempts: int = 4
    """How often a read, a list, a delete or a plain put is sent at most. Conditional writes are sent once."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "read_timeout"):
            if not 0 < getattr(self, name) <= 3600:
                raise InvalidInput(f"storage option {name} is {getattr(self, name)!r}; expected seconds from 0 to 3600")
        if not 1 <= self.max_attempts <= 100:
            raise InvalidInput(f"storage option max_attempts is {self.max_attempts!r}; expected 1 to 100")

    def upload_timeout(self, size: int) -> float:
        """Seconds after which an upload of `size` bytes is given up: the read time-out at 256 KiB/s or better."""
        return self.connect_timeout + self.read_timeout + size / (256 * 1024)

    def secrets(self) -> Iterable[str]:
        """Every text that must not be shown."""
        return [str(value) for name, value in self.given().items() if name not in self._SHOWN and len(str(value)) > 3]

    def given(self) -> dict[str, Any]:
        """The options by name, as `open_store` takes them."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def __repr__(self) -> str:
        shown = (f"{name}={value if name in self._SHOWN else _MASK!r}" for name, value in self.given().items())
        return f"{type(self).__name__}({', '.join(shown)})"


def seal(options: dict[str, Any]) -> bytes:
    """Options for a pickle, unreadable to the eye and to `grep`. This is *not* encryption."""
    return base64.b64encode(zlib.compress(pickle.dumps(options)))


def unseal(sealed: bytes) -> dict[str, Any]:
    """What was given to `seal`. As trustworthy as the pickle it came in, and no more."""
    options: dict[str, Any] = pickle.loads(zlib.decompress(base64.b64decode(sealed)))  # noqa: S301
    return options


def redact(text: str, options: ClientOptions) -> str:
    """The first line of a text from outside, short and free of this client's secrets."""
    for secret in options.secrets():
        text = text.replace(secret, _MASK)
    line = text.strip().splitlines()[0] if text.strip() else ""
    return "".join(char if char.isprintable() else "?" for char in line)[:200]


@dataclass(frozen=True, slots=True, repr=False)
class S3Options(ClientOptions):
    """How to reach S3 or a server that speaks like it."""

    _SHOWN: ClassVar[frozenset[str]] = _TUNING | {"client", "endpoint_url", "region", "anon", "profile"}

    client: str = "s3fs"
    """The library that talks to the store: `s3fs` or `obstore`."""
    key: str | None = None
    """Access key id. Without it, the environment and the usual files are asked."""
    secret: str | None = None
    """Secret access key."""
    token: str | None = None
    """Session token of temporary credentials."""
    endpoint_url: str | None = None
    """Where the store is, if not at AWS; paths then carry the bucket's name."""
    region: str | None = None
    """The bucket's region."""
    anon: bool = False
    """Send requests unsigned, for public buckets."""
    profile: str | None = None
    """A profile of the AWS configuration files; s3fs only."""

    def __post_init__(self) -> None:
        # Zero-argument super() does not work in a dataclass with slots before Python 3.14.
        ClientOptions.__post_init__(self)
        if self.client not in {"s3fs", "obstore"}:
            raise InvalidInput(f"storage option client is {self.client!r}; expected 's3fs' or 'obstore'")
        if (self.key is None) != (self.secret is None):
            raise InvalidInput("storage options key and secret belong together: one of them is missing")
        if self.token is not None and self.key is None:
            raise InvalidInput("storage option token needs key and secret beside it")
        if self.anon and self.key is not None:
            raise InvalidInput("storage options anon and key exclude each other")
        if self.profile is not None and self.client != "s3fs":
            raise InvalidInput("storage option profile works with client='s3fs' only; pass key and secret instead")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)

    def object_store_config(self) -> dict[str, Any]:
        """The same in the words of Rust's object_store, which obstore and delta-rs are built on."""
        config = {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "session_token": self.token,
            "endpoint": self.endpoint_url,
            "region": self.region,
            "skip_signature": self.anon or None,
        }
        return {name: value for name, value in config.items() if value is not None}


@dataclass(frozen=True, slots=True, repr=False)
class NativeOptions(ClientOptions):
    """How to reach Google or Azure: obstore's own names, passed on as they are."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """What obstore is configured with, such as `service_account_path` or `account_name`."""

    def given(self) -> dict[str, Any]:
        """The options by name, as `open_store` takes them."""
        common = {item.name: getattr(self, item.name) for item in fields(ClientOptions)}
        return {**common, **self.config}

    @classmethod
    def split(cls, given: Mapping[str, Any]) -> Self:
        """Take our own names out of what was given, and leave the rest to obstore."""
        ours = {name: _convert(cls, name, value) for name, value in given.items() if name in _TUNING}
        client = given.get("client", "obstore")
        if client != "obstore":
            raise InvalidInput(f"storage option client is {client!r}; Google and Azure are reached by 'obstore' only")
        return cls(**ours, config={k: v for k, v in given.items() if k not in _TUNING and k != "client"})


def parse_s3_options(given: Mapping[str, Any]) -> S3Options:
    """The options as a checked value, or `InvalidInput` that names the nearest name there is."""
    known = {item.name for item in fields(S3Options)}
    for name in given:
        if name not in known:
            raise InvalidInput(f"unknown storage option {name!r}{_suggest(name, known)}")
    return S3Options(**{name: _convert(S3Options, name, value) for name, value in given.items() if value is not None})


def _suggest(name: object, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; expected one of {', '.join(sorted(known))}"


def _convert(kind: type[ClientOptions], name: str, value: Any) -> Any:
    """The value in its field's type: Spark and command lines hand everything over as text."""
    wanted = next(item.type for item in fields(kind) if item.name == name)
    try:
        if wanted == "float":
            return float(value)
        if wanted == "int":
            return int(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"storage option {name} is {value!r}; expected a number") from None
    if wanted == "bool":
        if isinstance(value, bool):
            return value
        if str(value).lower() in {"true", "false"}:
            return str(value).lower() == "true"
        raise InvalidInput(f"storage option {name} is {value!r}; expected true or false")
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"storage option {name} must be a text that is not empty")
    return value


def _check_endpoint(endpoint_url: str) -> None:
    parts = urlsplit(endpoint_url)
    if "@" in endpoint_url:  # anywhere: a slash in a password ends what is taken for the host
        raise InvalidInput("storage option endpoint_url holds credentials; pass them as key and secret")
    if parts.query or parts.fragment:
        raise InvalidInput("storage option endpoint_url has a '?' or '#'; expected http://host:port or https://host")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(
            f"storage option endpoint_url is {endpoint_url!r}; expected http://host:port or https://host"
        )
