"""MkDocs hook for the HTML that Markdown makes: long names that may break between their words, and corners of tables.

A name in running text, such as `message_interceptors.incoming.overwrite`, may break after a dot, a slash or another sign
between its words, if it is too long for a line of a phone. An empty cell above row names is no header of a column.
"""

from __future__ import annotations

import re
from typing import Any

CHARACTERS_OF_A_LINE = 34
"""Characters of inline code that fit into a line on a phone, in a table or a list."""

EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
INLINE_CODE = re.compile(r"(<pre\b.*?</pre>)|(<code\b[^>]*>)(.*?)(</code>)", re.DOTALL)
WORD = re.compile(r"<[^>]*>|(?:&[a-z#0-9]+;|[^\s<&])+")
BREAK = re.compile(r"((?:&[a-z#0-9]+;|[./:=,(@-])+)(?=\w)")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page's HTML with `<wbr>` in its long names, and with plain cells in the corners of tables."""
    html = EMPTY_HEADER.sub(r"<td\1></td>", html)
    return INLINE_CODE.sub(
        lambda match: match[1] or match[2] + WORD.sub(_breakable, match[3]) + match[4], html
    )


def _breakable(word: re.Match[str]) -> str:
    if word[0].startswith("<") or len(word[0]) <= CHARACTERS_OF_A_LINE:
        return word[0]
    parts = BREAK.sub(r"\1<wbr>", word[0]).split("<wbr>")
    return "<wbr>".join(
        part.replace("_", "_<wbr>") if len(part) > CHARACTERS_OF_A_LINE else part for part in parts
    )
