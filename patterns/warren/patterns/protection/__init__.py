"""Message protection: `Encryption` against unauthorised reading, `Signing` against unauthorised changes."""

from warren.patterns.protection.encryption import Encryption
from warren.patterns.protection.protection_header import ProtectionStatistics
from warren.patterns.protection.signing import Signing

__all__ = ["Encryption", "ProtectionStatistics", "Signing"]
