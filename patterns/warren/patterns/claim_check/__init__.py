"""Claim check: large bodies are kept in a blob store; messages carry only a reference, the claim."""

from warren.patterns.claim_check.blob_store import BlobStore, BlobStoreUnavailable
from warren.patterns.claim_check.claim_check import BlobClaim, ClaimCheck, ClaimCheckStatistics
from warren.patterns.claim_check.folder_blob_store import FolderBlobStore
from warren.patterns.claim_check.s3_blob_store import S3BlobStore

__all__ = [
    "BlobClaim",
    "BlobStore",
    "BlobStoreUnavailable",
    "ClaimCheck",
    "ClaimCheckStatistics",
    "FolderBlobStore",
    "S3BlobStore",
]
