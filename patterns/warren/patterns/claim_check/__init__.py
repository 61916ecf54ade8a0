"""Large bodies travel beside the broker: kept in a blob store, claimed by whoever handles the message."""

from warren.patterns.claim_check.blob_store import BlobStore, BlobStoreUnavailable
from warren.patterns.claim_check.claim_check import Claim, ClaimCheck, ClaimCheckStatistics
from warren.patterns.claim_check.folder_blob_store import FolderBlobStore
from warren.patterns.claim_check.s3_blob_store import S3BlobStore

__all__ = [
    "BlobStore",
    "BlobStoreUnavailable",
    "Claim",
    "ClaimCheck",
    "ClaimCheckStatistics",
    "FolderBlobStore",
    "S3BlobStore",
]
