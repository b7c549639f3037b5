"""Where allocated claims come from: one read of the API server for each Prepare."""

from __future__ import annotations

import asyncio

from driver.claim import AllocatedClaim, ClaimError, ClaimReference, read_claim
from kube.asyncclient import AsyncKubeClient
from kube.errors import ApiError, ApiTooDeep
from kube.resources import RESOURCE_CLAIMS, Object


class ClaimSource:
    """Reads claims as they are now; nothing is cached, since an old allocation must never be prepared."""

    def __init__(self, client: AsyncKubeClient) -> None:
        self._client = client

    async def read(self, reference: ClaimReference, timeout: float) -> tuple[AllocatedClaim, Object]:
        """The claim's part for this driver, and the whole object.

        Raises:
            ClaimError: the claim is gone, replaced, not allocated or not reserved.
            ApiError, ApiUnavailable: the API server refuses or does not answer.
        """
        try:
            async with asyncio.timeout(timeout):
                found = await self._client.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        except TimeoutError:
            raise ClaimError(
                "ApiUnavailable", f"claim {reference}: the API server did not answer within {timeout:.0f} s"
            ) from None
        except ApiError as error:
            if error.not_found:
                raise ClaimError("NotFound", f"claim {reference} does not exist in the API server") from None
            raise
        except ApiTooDeep:
            raise ClaimError("BadConfig", f"claim {reference} is nested too deeply to be read") from None
        return read_claim(reference, found), found
