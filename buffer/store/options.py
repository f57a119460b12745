"""Storage options: the names that s3fs and pandas users know, checked when given, masked when shown."""

from __future__ import annotations

import base64
import difflib
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

_MASK = "***"
_TUNING = frozenset({"connect_timeout", "read_timeout", "max_attempts"})

# What s3fs users put into its dicts and forebay has an option of its own for, which either client understands.
_OWN_NAMES: Mapping[str, Mapping[str, str]] = {
    "client_kwargs": {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "aws_session_token": "token",
        "endpoint_url": "endpoint_url",
        "region_name": "region",
        "use_ssl": "use_ssl",
    },
    "config_kwargs": {
        "connect_timeout": "connect_timeout",
        "read_timeout": "read_timeout",
        "region_name": "region",
    },
    "s3_additional_kwargs": {},
}
_CLIENT_KWARGS = frozenset({"api_version", "aws_account_id", "verify"})
_FIXED_CONFIG = frozenset({"connector_args", "http_session_cls", "retries"})
_EVERY_REQUEST = frozenset({"ExpectedBucketOwner", "RequestPayer"})
_READS = _EVERY_REQUEST | {"SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5"}
_WRITES = _READS | {
    "ACL",
    "BucketKeyEnabled",
    "GrantFullControl",
    "GrantRead",
    "GrantReadACP",
    "GrantWriteACP",
    "SSEKMSEncryptionContext",
    "SSEKMSKeyId",
    "ServerSideEncryption",
    "StorageClass",
    "Tagging",
}
_WHY_NOT = {
    "gcsfs": "gcsfs cannot replace an object on condition that it is unchanged, which every decision here rests on",
    "adlfs": "forebay has no adapter for adlfs, since obstore does the same on Azure",
    "s3fs": "s3fs knows S3 alone",
}
_OBSTORE_HEADERS = {
    "BucketKeyEnabled": "aws_sse_bucket_key_enabled",
    "SSEKMSKeyId": "aws_sse_kms_key_id",
    "ServerSideEncryption": "aws_server_side_encryption",
}


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
                raise InvalidInput(
                    f"storage option {name} must be more than 0 and at most 3600 seconds, not {getattr(self, name)!r}"
                )
        if not 1 <= self.max_attempts <= 100:
            raise InvalidInput(
                f"storage option max_attempts must be at least 1 and at most 100, not {self.max_attempts!r}"
            )

    def upload_timeout(self, size: int) -> float:
        """Seconds after which an upload of `size` bytes is given up: the read time-out at 256 KiB/s or better."""
        return self.connect_timeout + self.read_timeout + size / (256 * 1024)

    def secrets(self) -> Iterable[str]:
        """Every text that must not be shown."""
        hidden = [value for name, value in self.given().items() if name not in self._SHOWN]
        return [text for text in _texts(hidden) if len(text) > 3]

    def given(self) -> dict[str, Any]:
        """The options by name, as `open_store` takes them."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None and value != {}}

    def __repr__(self) -> str:
        shown = (f"{name}={value if name in self._SHOWN else _MASK!r}" for name, value in self.given().items())
        return f"{type(self).__name__}({', '.join(shown)})"


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif not isinstance(value, bool):
        yield str(value)


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

    _SHOWN: ClassVar[frozenset[str]] = _TUNING | {
        "anon", "client", "endpoint_url", "profile", "region", "requester_pays", "use_ssl",
    }  # fmt: skip

    client: str | None = None
    """The library that talks to the store: `s3fs` or `obstore`. By default, the one that fits (`choice.py`)."""
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
    use_ssl: bool = True
    """False for plain HTTP to AWS, s3fs only. The scheme of `endpoint_url` decides where that is given."""
    requester_pays: bool = False
    """Agree to pay for the requests to a bucket of somebody else."""
    client_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What botocore makes its client with, such as `verify`; s3fs only."""
    config_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of botocore's `Config`, such as `s3` or `proxies`; s3fs only."""
    s3_additional_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Parameters of S3's requests, such as `ServerSideEncryption`, each sent with the requests that have it."""

    def __post_init__(self) -> None:
        # Zero-argument super() does not work in a dataclass with slots before Python 3.14.
        ClientOptions.__post_init__(self)
        if self.client not in {None, "s3fs", "obstore"}:
            raise InvalidInput(f"storage option client is {self.client!r}; expected 's3fs' or 'obstore'")
        if (self.key is None) != (self.secret is None):
            raise InvalidInput("storage option key or secret is missing: give both, or none")
        if self.token is not None and self.key is None:
            raise InvalidInput("storage option token needs key and secret beside it: give all three")
        if self.anon and self.key is not None:
            raise InvalidInput("storage options anon and key exclude each other; give one of them")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
            if not self.use_ssl and self.endpoint_url.startswith("https:"):
                raise InvalidInput(
                    "storage options use_ssl=False and an https:// endpoint_url exclude each other; use an "
                    "http:// endpoint_url, or leave out use_ssl"
                )
        self._check_kwargs()
        if self.client == "obstore" and self.only_s3fs:
            raise InvalidInput(
                f"storage option {self.only_s3fs[0]} works with client='s3fs' only"
                + ("; pass key and secret instead" if self.profile else "")
            )

    def _check_kwargs(self) -> None:
        for name in self.client_kwargs:
            if name not in _CLIENT_KWARGS:
                known = _CLIENT_KWARGS | _OWN_NAMES["client_kwargs"].keys()
                raise InvalidInput(f"storage option client_kwargs has an unknown name {name!r}{_suggest(name, known)}")
        for name in self.config_kwargs:
            if name in _FIXED_CONFIG:  # guard: settings cannot make a conditional write be sent twice
                raise InvalidInput(
                    f"storage option config_kwargs cannot set {name!r}, since forebay must send every "
                    "conditional write once; use max_attempts to set how often other requests are sent"
                )
        for name in self.s3_additional_kwargs:
            if name not in _WRITES:
                raise InvalidInput(f"storage option s3_additional_kwargs cannot set {name!r}{_suggest(name, _WRITES)}")

    @property
    def only_s3fs(self) -> list[str]:
        """Names of the given options that obstore does not have."""
        names = {
            "profile": self.profile is not None,
            "use_ssl": not self.use_ssl and self.endpoint_url is None,
            "client_kwargs": bool(self.client_kwargs),
            "config_kwargs": bool(self.config_kwargs),
        }
        headers = [name for name in self.s3_additional_kwargs if name not in _OBSTORE_HEADERS]
        return [name for name, given in names.items() if given] + [f"s3_additional_kwargs {name}" for name in headers]

    @property
    def request_kwargs(self) -> dict[str, Any]:
        """Parameters of listings and deletions, in botocore's words."""
        return self._kwargs_for(_EVERY_REQUEST)

    @property
    def read_kwargs(self) -> dict[str, Any]:
        """Parameters of a GET, in botocore's words."""
        return self._kwargs_for(_READS)

    @property
    def write_kwargs(self) -> dict[str, Any]:
        """Parameters of a PUT, in botocore's words."""
        return self._kwargs_for(_WRITES)

    def _kwargs_for(self, names: frozenset[str]) -> dict[str, Any]:
        payer = {"RequestPayer": "requester"} if self.requester_pays else {}
        return payer | {name: value for name, value in self.s3_additional_kwargs.items() if name in names}

    def object_store_config(self) -> dict[str, Any]:
        """The same in the words of Rust's object_store, which obstore and delta-rs are built on."""
        config = {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "session_token": self.token,
            "endpoint": self.endpoint_url,
            "region": self.region,
            "skip_signature": self.anon or None,
            "request_payer": self.requester_pays or None,
            **{config: self.s3_additional_kwargs.get(name) for name, config in _OBSTORE_HEADERS.items()},
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
        if "endpoint_url" in given:
            raise InvalidInput(
                "storage option endpoint_url is for s3://; use base_url for gs://, and endpoint for az://"
            )
        ours = {name: _convert(cls, name, value) for name, value in given.items() if name in _TUNING}
        client = given.get("client", "obstore")
        if client != "obstore":
            why = _WHY_NOT.get(client, "it is not a client for Google or Azure")
            raise InvalidInput(f"storage option client is {client!r}, and {why}: use 'obstore', or leave it out")
        return cls(**ours, config={k: v for k, v in given.items() if k not in _TUNING and k != "client"})


def parse_s3_options(given: Mapping[str, Any]) -> S3Options:
    """The options as a checked value, or `InvalidInput` that names the nearest name there is."""
    known = {item.name for item in fields(S3Options)}
    for name in given:
        if name not in known:
            raise InvalidInput(f"unknown storage option {name!r}{_suggest(name, known)}")
    named = {name: _convert(S3Options, name, value) for name, value in given.items() if value is not None}
    for container, own_names in _OWN_NAMES.items():
        if container in named:
            named[container] = _take_own_names(named, container, own_names)
    return S3Options(**named)


def _take_own_names(named: dict[str, Any], container: str, own_names: Mapping[str, str]) -> dict[str, Any]:
    """Move what forebay has an option for out of one of s3fs's dicts, and return the rest of the dict."""
    rest = {}
    for name, value in named[container].items():
        own_name = own_names.get(name)
        if own_name is None:
            rest[name] = value
        elif value is not None:
            converted = _convert(S3Options, own_name, value)
            if named.setdefault(own_name, converted) != converted:
                raise InvalidInput(f"storage options {own_name} and {container}[{name!r}] differ: give one of them")
    return rest


def _suggest(name: object, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; expected one of {', '.join(sorted(known))}"


def _convert(kind: type[ClientOptions], name: str, value: Any) -> Any:
    """The value in its field's type: Spark and command lines hand everything over as text."""
    wanted = next(item.type for item in fields(kind) if item.name == name)
    if wanted == "Mapping[str, Any]":
        return _convert_mapping(name, value)
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


def _convert_mapping(name: str, value: Any) -> dict[str, Any]:
    # The value may hold secrets, so no error repeats it.
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"storage option {name} must be a dict with names as keys, or the text of one as JSON")
    return dict(value)


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
