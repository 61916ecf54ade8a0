"""Registry of the jobs of `warren pipeline`: their packages by name."""

from __future__ import annotations

from warren.pipeline.jobs import dead_letters, delivery_audit, flow, order_timeouts
from warren.pipeline.jobs.job import Job

ALL: tuple[Job, ...] = (order_timeouts, dead_letters, delivery_audit, flow)
JOBS = {job.NAME: job for job in ALL}
