"""Definitions: export and import of everything apart from messages (https://www.rabbitmq.com/docs/definitions)."""

from __future__ import annotations

from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.management.request import Json

VHOST_KINDS = ("parameters", "policies", "queues", "exchanges", "bindings")


async def export_all(call: Call) -> Response:
    return Response(body=await call.perform("export_definitions"), headers=_download(call))


def _download(call: Call) -> dict[str, str]:
    name = call.query.get("download", "")
    safe = "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "._-@"))
    return {"Content-Disposition": f'attachment; filename="{safe}"'} if safe else {}


async def export_vhost(call: Call) -> Response:
    settings = call.visible().settings
    whole = await call.perform("export_definitions")
    found: dict[str, Json] = {
        key: whole[key] for key in ("rabbit_version", "rabbitmq_version", "product_name", "product_version")
    }
    found["description"] = settings.description
    found["metadata"] = {
        "description": settings.description,
        "tags": list(settings.tags),
        "default_queue_type": settings.default_queue_type or "classic",
        "protected_from_deletion": settings.protected,
    }
    for kind in VHOST_KINDS:
        found[kind] = [
            {key: value for key, value in row.items() if key != "vhost"}
            for row in whole[kind]
            if row["vhost"] == settings.name
        ]
    return Response(body=found, headers=_download(call))


def _parsed(call: Call) -> dict[str, Json]:
    return call.json_body("failed_to_parse_json")


async def import_all(call: Call) -> Response:
    await call.perform("import_definitions", definitions=_parsed(call))
    return Response(NO_CONTENT)


async def import_vhost(call: Call) -> Response:
    """Import what the request defines into one virtual host, whichever virtual host its objects name."""
    name = call.declarations().settings.name
    wanted = _parsed(call)
    chosen = {
        kind: [{**row, "vhost": name} if isinstance(row, dict) else row for row in wanted[kind]]
        for kind in VHOST_KINDS
        if isinstance(wanted.get(kind), list)
    }
    await call.perform("import_definitions", definitions=chosen)
    return Response(NO_CONTENT)
