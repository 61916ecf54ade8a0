"""MkDocs hook for the HTML that Markdown makes: names in running text that may break, or may not, and corners of tables.

A long name, such as `message_interceptors.incoming.overwrite`, may break after a dot, a slash or another sign between its
words, if it is too long for a line of a phone. A shorter one, such as `--data-dir`, never breaks. An empty cell above row
names is no header of a column.
"""

from __future__ import annotations

import html
import re
from typing import Any

CHARACTERS_OF_A_LINE = 34
"""Characters of inline code that fit into a line on a phone, in a table or a list."""

EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
INLINE_CODE = re.compile(r"(<pre\b.*?</pre>)|(<code\b[^>]*>)(.*?)(</code>)", re.DOTALL)
WORD = re.compile(r"<[^>]*>|(?:&[a-z#0-9]+;|[^\s<&])+")
BREAK = re.compile(r"((?:&[a-z#0-9]+;|[./:=,(@-])+)(?=\w)")


def on_page_content(content: str, **_: Any) -> str:
    """Return the page's HTML with `<wbr>` in its long names, and with plain cells in the corners of tables."""
    content = EMPTY_HEADER.sub(r"<td\1></td>", content)
    return INLINE_CODE.sub(
        lambda match: match[1] or match[2] + WORD.sub(_breakable, match[3]) + match[4], content
    )


def _breakable(word: re.Match[str]) -> str:
    if word[0].startswith("<"):
        return word[0]
    if len(html.unescape(word[0])) <= CHARACTERS_OF_A_LINE:
        # A browser breaks after a hyphen, a slash or a bracket, even between the two hyphens of an option.
        return f'<span class="whole">{word[0]}</span>' if re.search(r"\W", word[0]) else word[0]
    parts = BREAK.sub(r"\1<wbr>", word[0]).split("<wbr>")
    return "<wbr>".join(
        part.replace("_", "_<wbr>") if len(part) > CHARACTERS_OF_A_LINE else part for part in parts
    )
