"""Message protection: `Encryption` against reading, `Signing` against changes."""

from warren.patterns.protection.encryption import Encryption
from warren.patterns.protection.protection_header import ProtectionStatistics
from warren.patterns.protection.signing import Signing

__all__ = ["Encryption", "ProtectionStatistics", "Signing"]
