"""The HTTPS endpoint that the API server calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from controller.admission.certificates import ServingCertificate
from controller.admission.review import ReviewError, answer, kind_of

PATH = "/validate"
LONGEST_BODY_BYTES = 8 * 1024 * 1024
"""An object is at most 3 MiB as a request; an update's review holds it twice."""

OnReview = Callable[[str, str], None]
"""Called after each review with the object's kind (empty if none), and ``allowed``, ``refused`` or ``error``.
"""

log = logging.getLogger(__name__)


class Endpoint:
    """Answers reviews over TLS. Its certificate can change while it serves."""

    def __init__(self, address: tuple[str, int], on_review: OnReview) -> None:
        """``address`` is host and port; an empty host means all addresses."""
        self._host, self._port = address
        self._on_review = on_review
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._certificate: ServingCertificate | None = None

    def use(self, certificate: ServingCertificate) -> None:
        """Serve new connections with ``certificate``.

        Raises:
            ssl.SSLError: certificate or key cannot be used.
        """
        if certificate == self._certificate:
            return
        # OpenSSL's interface in Python reads files only; this one is never on a disk.
        file = os.memfd_create("webhook-certificate")
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(certificate.certificate + certificate.key)
            self._tls.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self._certificate = certificate

    async def run(self) -> None:
        """Serve until cancelled. A certificate is to be there before.

        Raises:
            OSError: the address is in use or not allowed.
        """
        application = web.Application(client_max_size=LONGEST_BODY_BYTES)
        application.router.add_post(PATH, self._review)
        runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host or None, self._port, ssl_context=self._tls)
            await site.start()
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(runner.cleanup(), 5.0)

    async def _review(self, request: web.Request) -> web.Response:
        review: Any = None
        try:
            review = await _body(request)
            answered = answer(review)
        except ReviewError as error:
            self._on_review(kind_of(review), "error")
            return web.Response(status=400, text=f"{error}\n")
        except RecursionError:
            self._on_review("", "error")
            return web.Response(status=400, text="the body is nested too deeply to be read\n")
        except web.HTTPException as error:
            self._on_review("", "error")
            return web.Response(status=error.status, text=f"{error.text}\n")
        allowed = answered["response"]["allowed"]
        self._on_review(kind_of(review), "allowed" if allowed else "refused")
        return web.json_response(answered)


async def _body(request: web.Request) -> object:
    """The body as JSON. Raises ReviewError, RecursionError, or HTTPException for its type or its size."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            text=f"content type {request.content_type!r} is not known; allowed: application/json"
        )
    body = await request.read()
    try:
        return json.loads(body)
    except ValueError as error:
        raise ReviewError(f"the body is not JSON: {error}") from None
