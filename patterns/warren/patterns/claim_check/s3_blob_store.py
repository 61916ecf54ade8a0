"""`S3BlobStore`: large bodies in an object store that supports Amazon's S3 protocol."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

from warren.patterns.claim_check.blob_store import BlobStoreUnavailable
from warren.patterns.optional_packages import require_package


class S3BlobStore:
    """Blob store with one object per body, shared by every process that reaches the bucket.

    Unless they are given, credentials and region are found as Amazon's tools find them (environment, `~/.aws`, the
    machine's role).

    An object store can delete old bodies by itself: a lifecycle rule of the bucket that expires the objects under
    `prefix` after the number of days that messages may wait. This costs nothing, while `clean` lists all objects. If
    the same content may be published again after so many days, use only such a rule: `clean` may delete a body that was
    put again after `clean` had listed it.

    :param bucket: an existing bucket.
    :param prefix: prefix of every object's name.
    :param settings: further arguments of aiobotocore's `create_client`: `endpoint_url`, `region_name`,
        `aws_access_key_id`, `aws_secret_access_key`, `config`.
    :raises UsageError: aiobotocore is not installed.
    """

    def __init__(self, bucket: str, *, prefix: str = "warren/", **settings: Any) -> None:
        require_package("aiobotocore", "s3", "S3BlobStore")
        self._bucket = bucket
        self._prefix = prefix
        self._settings = settings
        self._open: tuple[asyncio.AbstractEventLoop, AsyncExitStack, Any] | None = None
        self._opening = asyncio.Lock()

    async def put(self, name: str, body: bytes) -> None:
        await self._call("put_object", Bucket=self._bucket, Key=self._prefix + name, Body=body)

    async def get(self, name: str) -> bytes | None:
        answer = await self._call("get_object", Bucket=self._bucket, Key=self._prefix + name)
        if answer is None:
            return None
        try:
            async with answer["Body"] as stream:
                body: bytes = await stream.read()
        except Exception as error:
            raise self._unavailable(error) from error
        return body

    async def clean(self, before: datetime) -> int:
        cleaned = 0
        further: dict[str, str] = {}
        while True:
            page = (
                await self._call("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, **further) or {}
            )
            old = [
                {"Key": found["Key"]} for found in page.get("Contents", ()) if found["LastModified"] < before
            ]
            if old:
                await self._call(
                    "delete_objects", Bucket=self._bucket, Delete={"Objects": old, "Quiet": True}
                )
                cleaned += len(old)
            if not page.get("IsTruncated"):
                return cleaned
            further = {"ContinuationToken": page["NextContinuationToken"]}

    async def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[1].aclose()

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the S3 client and return its response, or None if the requested object does not exist."""
        from botocore.exceptions import ClientError

        try:
            client = await self._client()
            return await getattr(client, method)(**arguments)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise self._unavailable(error) from error
        except Exception as error:
            raise self._unavailable(error) from error

    async def _client(self) -> Any:
        """Return the S3 client of the running event loop, creating it if necessary: a client belongs to one event
        loop."""
        async with self._opening:
            loop = asyncio.get_running_loop()
            if self._open is None or self._open[0] is not loop:
                from aiobotocore.session import get_session

                stack = AsyncExitStack()
                client = await stack.enter_async_context(get_session().create_client("s3", **self._settings))
                self._open = loop, stack, client
            return self._open[2]

    def _unavailable(self, error: Exception) -> BlobStoreUnavailable:
        return BlobStoreUnavailable(
            f"the blob store in bucket {self._bucket!r} failed with {type(error).__name__}: {error}"
        )

    def __repr__(self) -> str:
        return f"S3BlobStore({self._bucket!r}, prefix={self._prefix!r})"


__all__ = ["S3BlobStore"]
