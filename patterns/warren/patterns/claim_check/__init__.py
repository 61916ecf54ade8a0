"""Large bodies travel beside the broker: kept in a blob store, claimed by whoever handles the message."""

from warren.patterns.claim_check.blob_store import Blobs, BlobsUnavailable
from warren.patterns.claim_check.claim_check import Claim, ClaimCheck, ClaimCheckStatistics
from warren.patterns.claim_check.folder_blobs import FolderBlobs
from warren.patterns.claim_check.s3_blobs import S3Blobs

__all__ = [
    "Blobs",
    "BlobsUnavailable",
    "Claim",
    "ClaimCheck",
    "ClaimCheckStatistics",
    "FolderBlobs",
    "S3Blobs",
]
