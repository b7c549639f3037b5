"""What can go wrong with a request to the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus


class ApiUnavailable(Exception):
    """No answer came from the API server: no connection, TLS failed, or time ran out. Worth a retry."""


class ApiTooDeep(ApiUnavailable):
    """The answer is JSON of more levels than can be read; users can write such objects."""


class ApiError(Exception):
    """The API server answered with an error.

    ``status`` is the HTTP status, ``reason`` and ``message`` come from the ``Status`` object of the answer,
    ``retry_after`` is in seconds (``None`` if the server named no time).
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def from_response(cls, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        """The error in an answer; a body that is no ``Status`` object becomes the message as it is."""
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
        message = body[:1024].decode(errors="replace").strip() or reason
        try:
            content = json.loads(body)
        except ValueError:
            content = None
        if isinstance(content, dict) and content.get("kind") == "Status":
            reason = content.get("reason") or reason
            message = content.get("message") or message
        try:
            retry_after = float(headers["Retry-After"])
        except (KeyError, ValueError):
            retry_after = None
        return cls(status, reason, message, retry_after)

    @classmethod
    def from_status(cls, status: Mapping[str, object]) -> ApiError:
        """The error in a ``Status`` object, as a watch sends it."""
        code = status.get("code")
        return cls(
            code if isinstance(code, int) else 500,
            str(status.get("reason") or "Unknown"),
            str(status.get("message") or "the API server gave no message"),
        )

    @property
    def not_found(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        """409 because the object changed meanwhile (or an update precondition failed)."""
        return self.status == HTTPStatus.CONFLICT and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        return self.status == HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def gone(self) -> bool:
        """410: the resourceVersion of a watch or of a list page is too old; list again."""
        return self.status == HTTPStatus.GONE

    @property
    def unauthorized(self) -> bool:
        return self.status == HTTPStatus.UNAUTHORIZED

    @property
    def forbidden(self) -> bool:
        return self.status == HTTPStatus.FORBIDDEN

    @property
    def invalid(self) -> bool:
        return self.status == HTTPStatus.UNPROCESSABLE_ENTITY

    @property
    def retriable(self) -> bool:
        """Too many requests, or a failure on the server's side."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
