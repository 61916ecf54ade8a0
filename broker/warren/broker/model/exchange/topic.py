"""Topic matching by a trie of words. The cost of a publish depends on its words and matches, not on other bindings.

`*` stands for exactly one word, `#` for none or more (https://www.rabbitmq.com/tutorials/tutorial-five-python).
"""

from __future__ import annotations

from typing import Final

WILDCARDS: Final = (b"*", b"#")
KEYS_AT_ONCE: Final = 64
"""Routing keys that are matched in one walk through the trie."""
NO_WORDS: Final = (b"#", b"#")
"""Placeholders at the two positions behind the words of a routing key, so that words and bits have the same index."""


class TrieNode:
    """Node of the trie: the destinations whose binding key ends here, and the words that may follow."""

    def __init__(self) -> None:
        self.children: dict[bytes, TrieNode] = {}
        self.ends: dict[object, int] = {}


class TopicTrie:
    """Binding keys of a topic exchange with their destinations.

    A destination may be added with the same key several times.
    """

    def __init__(self) -> None:
        self.root = TrieNode()

    def add(self, pattern: bytes, destination: object) -> None:
        """Add a destination under a binding key.

        :param pattern: the binding key, in which `*` and `#` stand for words.
        """
        node = self.root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                child = TrieNode()
                node.children[word] = child
            node = child
        node.ends[destination] = node.ends.get(destination, 0) + 1

    def remove(self, pattern: bytes, destination: object) -> None:
        """Remove a destination from a binding key: undo one call of `add` with this pattern and destination."""
        path: list[tuple[TrieNode, bytes]] = []
        node = self.root
        for word in words_of(pattern):
            path.append((node, word))
            node = node.children[word]
        left = node.ends[destination] - 1
        if left:
            node.ends[destination] = left
            return
        del node.ends[destination]
        while path and not node.ends and not node.children:
            node, word = path.pop()
            del node.children[word]

    def match(self, keys: list[bytes]) -> dict[object, bool]:
        """Return the destinations that one of the routing keys matches, each once, as the keys of a dict (an ordered set).

        A node of the trie is visited at most once for 64 keys, whatever wildcards lead to it.
        """
        found: dict[object, bool] = {}
        if len(keys) <= KEYS_AT_ONCE:
            self._match(keys, found)
        else:
            for start in range(0, len(keys), KEYS_AT_ONCE):
                self._match(keys[start : start + KEYS_AT_ONCE], found)
        return found

    def _match(self, keys: list[bytes], found: dict[object, bool]) -> None:
        """Add the destinations that one of a few routing keys matches to `found`.

        Numbers stand for sets of positions between words: a key of n words has n + 1 bits for them, from the lowest free
        bit on, and then a bit that stays 0. So one operation follows a step of the trie at all positions of all keys.
        """
        words: list[bytes] = []
        starts = 0
        ends = 0
        bit = 1
        for key in keys:
            starts |= bit
            of_key = words_of(key)
            words += of_key
            bit <<= len(of_key)
            ends |= bit
            bit <<= 2
            words += NO_WORDS
        guards = ends << 1
        places: dict[bytes, int] = {}
        # The positions are those at which a match of the words up to the node can end.
        stack: list[tuple[TrieNode, int]] = [(self.root, starts)]
        while stack:
            node, at = stack.pop()
            if at & ends:
                for destination in node.ends:
                    found[destination] = True
            children = node.children
            if not children:
                continue
            any_words = children.get(b"#")
            if any_words is not None:
                # All positions of a key from the first one of `at` on.
                stack.append((any_words, ((guards - at) | at) & ~guards))
            at &= ~ends
            if not at:
                continue
            # A routing key may itself contain the words `*` and `#`. The wildcard branches match them.
            if at & (at - 1) == 0:
                word = words[at.bit_length() - 1]
                child = children.get(word)
                if child is not None and word not in WILDCARDS:
                    stack.append((child, at << 1))
            else:
                if not places:
                    places = places_of(words)
                for word in places if len(places) < len(children) else children:
                    child = children.get(word)
                    matched = at & places.get(word, 0)
                    if matched and child is not None:
                        stack.append((child, matched << 1))
            star = children.get(b"*")
            if star is not None:
                stack.append((star, at << 1))


def places_of(words: list[bytes]) -> dict[bytes, int]:
    """Return for each word, without `*` and `#`, a number whose bit n is set if it is the word at index n."""
    places: dict[bytes, int] = {}
    bit = 1
    for word in words:
        if word not in WILDCARDS:
            places[word] = places.get(word, 0) | bit
        bit <<= 1
    return places


def words_of(key: bytes) -> list[bytes]:
    """Split a routing or binding key at its dots into words.

    An empty key has no words, so that `*` does not match it. A single dot has two empty words.
    """
    return key.split(b".") if key else []
