"""Definitions: export and import of everything apart from messages (https://www.rabbitmq.com/docs/definitions)."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from typing import Final

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.http_api.resources.cluster import cluster_name_of
from warren.broker.management.definitions_export import vhost_metadata
from warren.broker.management.request import Json
from warren.broker.management.verbs import definitions as definition_verbs
from warren.broker.management.verbs.virtual_hosts import vhost_limits

VHOST_KINDS = ("parameters", "policies", "queues", "exchanges", "bindings")
MOST_FORM_FIELDS: Final = 16
"""Fields of an uploaded form that are looked at."""
MOST_FIELD_HEAD: Final = 4096
"""Bytes that the head of such a field may have."""


async def export_all(call: Call) -> Response:
    name = cluster_name_of(call)
    found = {
        **await call.perform(definition_verbs.export_definitions),
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": name,
        "explanation": f"Definitions of cluster '{name}'",
    }
    return Response(body=found, headers=_download(call))


def _download(call: Call) -> dict[str, str]:
    name = call.query.get("download", "")
    safe = "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "._-@"))
    return {"Content-Disposition": f'attachment; filename="{safe}"'} if safe else {}


async def export_vhost(call: Call) -> Response:
    if call.name("vhost") not in call.node.virtual_hosts:
        raise bad_request("vhost_not_found")
    settings = call.visible().settings
    whole = await call.perform(definition_verbs.export_definitions)
    found: dict[str, Json] = {
        key: whole[key] for key in ("rabbit_version", "rabbitmq_version", "product_name", "product_version")
    }
    found["rabbitmq_definition_format"] = "single_virtual_host"
    found["original_vhost_name"] = settings.name
    found["explanation"] = f"Definitions of virtual host '{settings.name}'"
    found["description"] = settings.description
    found["metadata"] = vhost_metadata(settings, call.node.virtual_hosts.compat)
    found["limits"] = vhost_limits(settings)
    for kind in VHOST_KINDS:
        found[kind] = [
            {key: value for key, value in row.items() if key != "vhost"}
            for row in whole[kind]
            if row["vhost"] == settings.name
        ]
    return Response(body=found, headers=_download(call))


async def _parsed(call: Call) -> dict[str, Json]:
    """Return the definitions of the body: JSON, or a form with the field `file`, as RabbitMQ's page sends it.

    :raises ApiError: 400 if the body is neither; 413 if it has too many values.
    """
    content_type = Message()
    content_type["Content-Type"] = call.headers.get("Content-Type", "")
    if content_type.get_content_type() == "multipart/form-data":
        await call.parse_form_file(_uploaded_file(call.raw_body, content_type.get_boundary("")))
    return call.json_body("failed_to_parse_json")


def _uploaded_file(body: bytes, boundary: str) -> bytes:
    """Return the content of the field `file` of a form; nothing if the form has none.

    :param boundary: text between the fields; empty if the request names none.
    """
    if not boundary:
        return b""
    delimiter = b"\r\n--" + boundary.encode("utf-8", "surrogateescape")
    for part in (b"\r\n" + body).split(delimiter, MOST_FORM_FIELDS)[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        if len(head) <= MOST_FIELD_HEAD:
            fields = message_from_bytes(head.lstrip(b"\r\n"))
            if fields.get_param("name", header="Content-Disposition") == "file":
                return content
    return b""


async def import_all(call: Call) -> Response:
    await call.perform(definition_verbs.import_definitions, definitions=await _parsed(call))
    return Response(NO_CONTENT)


async def import_vhost(call: Call) -> Response:
    """Import what the request defines into one virtual host, whichever virtual host its objects name."""
    wanted = await _parsed(call)
    name = call.visible().settings.name
    chosen = {
        kind: [{**row, "vhost": name} if isinstance(row, dict) else row for row in wanted[kind]]
        for kind in VHOST_KINDS
        if isinstance(wanted.get(kind), list)
    }
    await call.perform(definition_verbs.import_definitions, definitions=chosen)
    return Response(NO_CONTENT)
