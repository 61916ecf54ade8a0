set -eu

# WARREN_MIGRATE_SOURCE and WARREN_MIGRATE_TARGET are AMQP URLs with the virtual host, and a user with the tag administrator.
apis="--source-management-url $SOURCE_API --target-management-url $TARGET_API"

# 1. Show what would be moved, and what the target cannot have. Nothing is changed.
warren migrate $apis --dry-run

# 2. Move until the source is empty and no client is connected to it. After a kill, the same command goes on.
warren migrate $apis --state shop-migration

# 3. Keep the proof: counts and digests of each queue on both sides.
cat shop-migration/certificate.txt
