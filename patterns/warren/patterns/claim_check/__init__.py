"""Large bodies travel beside the broker: kept in a blob store, claimed by whoever handles the message."""

from warren.patterns.claim_check.blobs import Blobs, BlobsUnavailable
from warren.patterns.claim_check.claim_check import Claim, ClaimCheck, ClaimCheckStatistics
from warren.patterns.claim_check.folder import FolderBlobs
from warren.patterns.claim_check.s3 import S3Blobs

__all__ = [
    "Blobs",
    "BlobsUnavailable",
    "Claim",
    "ClaimCheck",
    "ClaimCheckStatistics",
    "FolderBlobs",
    "S3Blobs",
]
