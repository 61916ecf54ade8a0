"""Files of the management page: their content, their headers, and the routes that serve them."""

from __future__ import annotations

import hashlib
import html
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Media type of the files that are served, by the end of their names."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
FOREVER: Final = "public, max-age=31536000, immutable"
"""Caching of files whose path has the version of the page: another version has another path."""


class PageFile(NamedTuple):
    """One file of the page.

    :ivar tag: hash of its content.
    """

    content: bytes
    media_type: str
    tag: str


def _file(content: bytes, suffix: str) -> PageFile:
    return PageFile(content, TYPES[suffix], hashlib.blake2b(content, digest_size=12).hexdigest())


def load_files() -> tuple[str, dict[str, PageFile]]:
    """Return the version of the page, a hash of all its files, and the files by their path in the folder."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    files = {path.relative_to(FOLDER).as_posix(): _file(path.read_bytes(), path.suffix) for path in paths}
    digest = hashlib.blake2b(digest_size=8)
    for name, file in files.items():
        digest.update(f"{name} {file.tag}\n".encode())
    version = digest.hexdigest()
    modules = [name for name in files if name.endswith(".js")]
    # All at once: without it, a browser finds the imports of a module only when it has read the module.
    preloads = "\n".join(
        f'<link rel="modulepreload" href="page/{version}/{html.escape(name)}">' for name in modules
    )
    index = files[INDEX].content.decode()
    index = index.replace("{version}", version).replace("<!-- modules -->", preloads)
    files[INDEX] = _file(index.encode(), ".html")
    return version, files


def add_routes(app: web.Application) -> None:
    """Add the routes of the page: `/`, and its files at `/page/VERSION/`. Other paths find no file.

    `/warren/`, where dead letters and the topology had a page of their own, leads to the page.
    """
    version, files = load_files()

    async def index(request: web.Request) -> web.Response:
        return _respond(request, files[INDEX], "no-cache")

    async def asset(request: web.Request) -> web.Response:
        file = files.get(request.match_info["name"])
        if file is None or request.match_info["version"] != version:
            raise web.HTTPNotFound
        return _respond(request, file, FOREVER)

    async def redirect(request: web.Request) -> web.Response:
        # Relative, as all addresses of the page: a proxy may serve it below another path.
        root = "../" if request.path.endswith("/") else "./"
        return web.Response(status=302, headers={**HEADERS, "Location": f"{root}#/dead-letters"})

    for former in ("/warren", "/warren/"):
        app.router.add_get(former, redirect, allow_head=True)
    app.router.add_get("/", index, allow_head=True)
    app.router.add_get("/page/{version}/{name:.+}", asset, allow_head=True)


def _respond(request: web.Request, file: PageFile, caching: str) -> web.Response:
    headers = {**HEADERS, "Cache-Control": caching, "ETag": f'"{file.tag}"'}
    if any(tag.value in (file.tag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.content, content_type=file.media_type, charset="utf-8", headers=headers)
